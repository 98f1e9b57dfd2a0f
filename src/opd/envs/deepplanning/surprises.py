"""What differs between a real archive and the published layout: gathered, so that one run names everything."""

from collections.abc import Iterator
from dataclasses import dataclass, field

NUM_EXAMPLES = 3


@dataclass
class _Group:
    fault: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)


class Surprises:
    """Faults, with which an archive cannot be used, and notes: values that are imported as they stand.

    Args:
        num_examples: places that are kept of each kind; None: all.
    """

    def __init__(self, num_examples: int | None = NUM_EXAMPLES) -> None:
        self._num_examples = num_examples
        self._groups: dict[str, _Group] = {}

    def fault(self, rule: str, where: str = "") -> None:
        """Something without which tools cannot work."""
        self._add(rule, where, fault=True)

    def note(self, rule: str, where: str = "") -> None:
        """Something unexpected that tools can live with."""
        self._add(rule, where, fault=False)

    @property
    def num_faults(self) -> int:
        """Faults counted one by one."""
        return sum(group.count for group in self._groups.values() if group.fault)

    @property
    def num_notes(self) -> int:
        """Notes counted one by one."""
        return sum(group.count for group in self._groups.values() if not group.fault)

    def lines(self) -> Iterator[str]:
        """One line a kind, faults first: what, how often, where."""
        for rule, group in sorted(self._groups.items(), key=lambda item: (not item[1].fault, item[0])):
            more = group.count - len(group.examples)
            where = "; ".join(group.examples) + (f"; and {more} more" if more and group.examples else "")
            yield f"{'fault' if group.fault else 'note'}: {rule}" + (f" ({where})" if where else "")

    def _add(self, rule: str, where: str, *, fault: bool) -> None:
        group = self._groups.setdefault(rule, _Group(fault))
        group.count += 1
        if where and (self._num_examples is None or len(group.examples) < self._num_examples):
            group.examples.append(where)
