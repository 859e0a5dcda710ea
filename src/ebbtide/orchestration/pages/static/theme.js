// Shows light or dark as Airflow's own switch says; without a choice there, as the system does.
(() => {
  const root = document.documentElement;
  const follow = () => {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  follow();
  addEventListener("storage", follow);
})();
