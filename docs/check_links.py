"""Follow every internal link of the built site.

python docs/check_links.py docs/_build/html

prints links to files or places that are not there, and ends with exit code 1 if there
are any. Links to other sites are not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Files of the theme, which are no pages.
SKIPPED = "_static"


class Page(HTMLParser):
    """Collect what a page links to, and what can be linked to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        """Note addresses and names."""
        found = dict(attrs)
        self.places |= {found.get("id"), found.get("name")}
        name = {"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag)
        if found.get(name):
            self.links.append(found[name])


def broken(root):
    """Yield the page and the address of each broken link."""
    paths = [path for path in root.rglob("*.html") if SKIPPED not in path.parts]
    pages = {path: Page(path) for path in sorted(paths)}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            place = unquote(parts.fragment)
            known = pages.get(target)
            if not target.exists() or (place and known and place not in known.places):
                yield path.relative_to(root), link


def main():
    """Print what is broken."""
    root = Path(sys.argv[1]).resolve()
    found = list(broken(root))
    for path, link in found:
        print(f"{path}: {link}")
    print(f"{len(list(root.rglob('*.html')))} pages, {len(found)} broken links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
