"""The page of a plan: steps below what they read, every source in it, text of the user's never read as markup."""
from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from tilefuse.tools.view import boxes_of, place, plan_page

EXPLANATION: dict[str, Any] = {
    "name": "a<b", "kernels": [
        {"name": "first", "nodes": ["t"], "reads": ["x"], "writes": ["t"], "bytes_read": 4, "bytes_written": 4, "edges": []},
        {"name": "second", "nodes": ["y"], "reads": ["t", "m"], "writes": ["y"], "bytes_read": 4, "bytes_written": 4,
         "edges": [{"producer": "p", "user": "y", "level": "shared"}]}],
    "library": [{"operator": "matmul", "operands": ["t", "w"], "results": [[0, "m"]]}],
}


def test_a_step_stands_below_everything_it_reads() -> None:
    boxes = boxes_of(EXPLANATION)
    places, edges = place(boxes)
    by_title = {box.title: places[box.key][1] for box in boxes}
    assert by_title["first"] < by_title["matmul"] < by_title["second"]
    assert sorted(value for _, _, value in edges) == ["m", "t", "t"]


def test_steps_that_wait_for_each_other_do_not_hang_the_page() -> None:
    circle = {"kernels": [{"name": "a", "nodes": ["p"], "reads": ["q"], "writes": ["p"]},
                          {"name": "b", "nodes": ["q"], "reads": ["p"], "writes": ["q"]}]}
    places, _ = place(boxes_of(circle))
    assert set(places) == {"k0", "k1"}


def test_the_page_is_whole_and_escapes_what_is_the_users() -> None:
    page = plan_page(EXPLANATION, {"first": "// </script> float x;", "second": "// two"})
    assert "a&lt;b" in page and "<title>a<b" not in page
    assert "\\u003c/script> float x" in page and "// two" in page and "shared" in page
    assert "http://" not in page and "https://" not in page

    class Balance(HTMLParser):
        depth = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.depth += tag not in ("meta", "rect", "path")

        def handle_endtag(self, tag: str) -> None:
            self.depth -= tag not in ("meta", "rect", "path")

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            return

    balance = Balance()
    balance.feed(page)
    assert balance.depth == 0
