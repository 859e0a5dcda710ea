// Follows Airflow's own light or dark switch, or the system if the user has not chosen.
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
