"""Is a built site whole? Every link leads to a page and a heading that exist, and nothing is loaded from elsewhere.

python docs/check_site.py build/docs
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
WITHOUT_SIDEBAR = {"index.html"}


class Page(HTMLParser):
    """The places of a page that can be linked to, its links, what it loads, and whether it can be searched from."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.has_search = False
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        self.loaded += [value for name, value in attrs if (tag, name) in LOADED and value]
        self.has_search |= tag == "input" and found.get("name") == "q"


def faults_of(site: Path) -> list[str]:
    """What is wrong with the site, a line each."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        here = path.relative_to(site)
        if not page.has_search and here.as_posix() not in WITHOUT_SIDEBAR:
            faults.append(f"{here} has no search box")
        faults += [f"{here} loads {link} from elsewhere" for link in page.loaded if urlsplit(link).netloc]
        faults += [f"{here}: {link} leads nowhere" for link in page.links + page.loaded if is_broken(link, path, pages)]
    return faults if pages else [f"{site} has no pages"]


def is_broken(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    """Links to other sites are not followed."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return True
    return bool(parts.fragment) and target in pages and unquote(parts.fragment) not in pages[target].places


def main(folder: str) -> int:
    site = Path(folder).resolve()
    faults = faults_of(site)
    print(*faults or [f"{site / 'index.html'}: every link leads somewhere"], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
