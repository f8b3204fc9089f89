"""A plain table that fits: long columns are shortened, then those that matter least are left out."""

from nodewarden.cli.output import Screen, clean, columns_of, shorten

GAP = "  "
_SHORTEST = 8


class Cell:
    """One text and its style; "" is no style."""

    __slots__ = ("style", "text")

    def __init__(self, text: str, style: str = "") -> None:
        self.text = clean(text)
        self.style = style


class Column:
    """One column.

    Args:
        head: what is above it.
        right: aligned to the right, as numbers are.
        rank: 0 = always shown; the highest rank goes first when the screen is narrow.
        shrink: may be shortened, but not below its head or `least` columns.
        least: as many columns as it needs to be of use.
    """

    def __init__(
        self, head: str, *, right: bool = False, rank: int = 0, shrink: bool = False, least: int = _SHORTEST
    ) -> None:
        self.head = head
        self.right = right
        self.rank = rank
        self.shrink = shrink
        self.least = least


def table_lines(screen: Screen, columns: list[Column], rows: list[list[Cell]]) -> list[str]:
    """Lines of at most `screen.width` columns; a column in which no row says anything is left out."""
    fitted = [[Cell(screen.fit(cell.text), cell.style) for cell in row] for row in rows]
    keep = [i for i, c in enumerate(columns) if c.rank == 0 or any(row[i].text for row in fitted)]
    widths = [max([columns_of(c.head), *(columns_of(row[i].text) for row in fitted)]) for i, c in enumerate(columns)]

    natural = list(widths)

    def total() -> int:
        return sum(widths[i] for i in keep) + len(GAP) * (len(keep) - 1)

    by_rank = sorted(keep, key=lambda i: -columns[i].rank)
    for i in by_rank:
        if columns[i].shrink and total() > screen.width:
            shortest = max(columns_of(columns[i].head), columns[i].least)
            widths[i] = max(min(widths[i], shortest), widths[i] - (total() - screen.width))
    for i in by_rank:
        if columns[i].rank > 0 and total() > screen.width:
            keep.remove(i)
    for i in keep:  # what was left out may have made room again
        if columns[i].shrink:
            widths[i] += max(0, min(natural[i] - widths[i], screen.width - total()))
    head = GAP.join(_aligned(columns[i].head, widths[i], columns[i].right) for i in keep).rstrip()
    lines = [screen.paint(shorten(head, screen.width), "head")]
    for row in fitted:
        cells = []
        for i in keep:
            text = _aligned(screen.fit(shorten(row[i].text, widths[i])), widths[i], columns[i].right)
            cells.append(screen.paint(text, row[i].style))
        line = GAP.join(cells)
        lines.append(line.rstrip() if not screen.colour else line)
    return lines


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space
