"""Fill in the ${...} of templates in conf/ and write them into a directory, as one file.

Usage: render.py TEMPLATE... TARGET_DIR; the first template names the file. Names come from the
environment; EBBTIDE_JARS is every jar in $EBBTIDE_HOME/jars and extra-jars, EBBTIDE_CLASS_PATH the
same as a class path. A name nobody set is an error, and so is a missing jar directory.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

# Jars of one's own, such as another catalog's: `make setup` fetches none into it, and removes none.
EXTRA_JARS = "extra-jars"


def main(argv: Sequence[str] | None = None) -> int:
    """Render the templates; 1 when one is missing, or a name of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("template", type=Path, nargs="+")
    parser.add_argument("target", type=Path)
    args = parser.parse_args(argv)
    text = ""
    for template in args.template:
        try:
            text += render(template.read_text(), names_for(template))
        except KeyError as error:
            print(f"render: {template} needs {error.args[0]}, which is not set", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"render: cannot read {template}: {error.strerror}", file=sys.stderr)
            return 1
    args.target.mkdir(parents=True, exist_ok=True)
    write_private(args.target / args.template[0].name, text)
    return 0


def names_for(template: Path) -> Mapping[str, str]:
    """The environment; Spark reads its settings as Java properties, where a backslash escapes."""
    if template.suffix != ".conf":
        return os.environ
    return {name: value.replace("\\", "\\\\") for name, value in os.environ.items()}


def render(template: str, environment: Mapping[str, str]) -> str:
    """The template with every name replaced; KeyError names the one that is missing."""
    names = dict(environment)
    if "${EBBTIDE_JARS}" in template:
        found = jars(Path(names["EBBTIDE_HOME"]))
        names |= {"EBBTIDE_JARS": ",".join(found), "EBBTIDE_CLASS_PATH": ":".join(found)}
    return Template(template).substitute(names)


def jars(home: Path) -> list[str]:
    """Paths of the resolved jars and of the user's, each sorted: the same jars, the same file."""
    found = jars_in(home / "jars")
    if not found:
        raise KeyError(f"EBBTIDE_JARS (no jar in {home / 'jars'}: run `make setup`)")
    return found + jars_in(home / EXTRA_JARS)


def jars_in(directory: Path) -> list[str]:
    """Paths of a directory's jars, sorted; none where there is no such directory."""
    return sorted(str(path) for path in directory.resolve().glob("*.jar"))


def write_private(path: Path, text: str) -> None:
    """Write for the owner only: a catalog's password may be in it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
