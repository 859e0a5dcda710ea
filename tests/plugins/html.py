"""What a page says, without its tags."""

from html.parser import HTMLParser


class _Text(HTMLParser):
    """The words of a page, without what is in tags."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def text_of(html: str) -> str:
    """All words of a page, a blank between each."""
    parser = _Text()
    parser.feed(html)
    return " ".join(parser.words)
