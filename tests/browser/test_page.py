"""Pages of real models in a real browser: edges counted, nothing overlaps, no error, and every panel tells what it should."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tilefuse
from tests.browser import chromium
from tests.browser.explanations import chain
from tests.unit.pages.models import attention, drawn_inputs, encoder, resnet
from tilefuse.base.options import Options
from tilefuse.driver.explain.why import page_answers
from tilefuse.pages import libraries
from tilefuse.pages.page import page_text, program_data

pytestmark = [
    pytest.mark.skipif(not chromium.found(), reason="no Chromium is installed (Debian: apt-get install chromium)"),
    pytest.mark.skipif(bool(libraries.missing()), reason=f"packages of pages are missing: {', '.join(libraries.missing())}"),
]
MODELS = {"encoder": encoder, "resnet": resnet, "attention": attention}
SIZES = ((1600, 1000), (1280, 720), (800, 900))
EXAMPLES = Path(__file__).parents[2] / "examples"
PROBES = (Path(__file__).parent / "probes.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    made = chromium.Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every model."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: model().view(folder / f"{name}.html") for name, model in MODELS.items()}


def open_page(browser: chromium.Browser, path: Path, size: tuple[int, int] = SIZES[0]) -> None:
    """Loads a page at a size of the window."""
    browser.resize(*size)
    browser.open(path)
    browser.evaluate(PROBES)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_all_boxes_open_draw_every_edge_once(browser: chromium.Browser, pages: dict[str, Path], model: str) -> None:
    """Opened to the last box, with inputs shown, the drawing has one line for each pair of boxes between which a value goes."""
    open_page(browser, pages[model])
    told = MODELS[model]().explain(json=True)
    assert browser.evaluate("probe.openAll()") == browser.evaluate("page.p.boxes.size")
    drawn = browser.evaluate("""[...document.querySelectorAll("#canvas g.edge")].map(e => [e.dataset.source, e.dataset.target])""")
    wanted = {(e["source"], e["target"]) for e in program_data(told, {})["drawing"]["edges"]}
    assert len(drawn) == len(wanted) and {tuple(pair) for pair in drawn} == wanted
    inside = {(k["step"], e["producer"], e["user"]) for k in told["kernels"] for e in k["edges"] if e["level"] != "global"}
    assert browser.evaluate("probe.count('#canvas g.edge:not(.global)')") == len(inside)
    assert browser.evaluate("probe.overlaps('#canvas text')") == []
    assert browser.evaluate("probe.boxes()") == []
    assert browser.problems == []


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("model", ["encoder", "resnet"])
def test_no_text_lies_over_another_at_any_size(browser: chromium.Browser, pages: dict[str, Path], model: str,
                                               size: tuple[int, int]) -> None:
    open_page(browser, pages[model], size)
    assert browser.evaluate("probe.overlaps('#canvas text')") == []
    assert browser.evaluate("probe.boxes()") == []
    assert browser.evaluate("probe.crowded()") == []
    for tab in ("kernels", "time", "roofline", "memory", "rejected"):
        browser.evaluate(f"page.tab('{tab}')")
        assert browser.evaluate(f"document.getElementById('{tab}').innerText.length") > 40
        assert browser.evaluate(f"probe.overlaps('#{tab} svg text')") == [], tab
        assert browser.evaluate("probe.crowded()") == []
    assert browser.problems == []


def test_overlapping_texts_are_found(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """The probe can fail: a label moved onto another is seen, and so is a box moved onto another."""
    open_page(browser, pages["resnet"])
    browser.evaluate("""(() => { const [a, b] = document.querySelectorAll("#canvas g.edge text"); b.setAttribute("x", a.getAttribute("x"));
                                 b.setAttribute("y", a.getAttribute("y")); })()""")
    assert len(browser.evaluate("probe.overlaps('#canvas text')")) == 1
    browser.evaluate("""(() => { const [a, b] = document.querySelectorAll("#canvas g.box:not(.open)");
                                 b.setAttribute("transform", a.getAttribute("transform")); })()""")
    assert browser.evaluate("probe.boxes()")


def test_a_click_tells_of_a_kernel_and_a_second_one_why(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """With the mouse, as a user does it."""
    open_page(browser, pages["resnet"])
    kernel = resnet().explain(json=True)["kernels"][1]
    browser.evaluate("graphView.closeAll()")
    browser.click(*browser.evaluate("probe.place('k1')"))
    side = browser.evaluate("probe.side()")
    assert kernel["name"] in side and "of the limit" in side and kernel["notation"] in side
    assert browser.evaluate("probe.count('#side .tiles figure')") == len(kernel["tiles"])
    assert browser.evaluate("probe.count('#side .source .id')") > 10
    assert browser.evaluate("probe.count('#canvas g.edge.near')") >= 2
    browser.click(*browser.evaluate("probe.place('l1')"), shift=True)
    answer = browser.evaluate("probe.side()")
    assert "library call" in answer and "through global memory" in answer and "--why" in answer
    assert browser.problems == []


def test_operators_of_one_kernel_tell_their_level(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["resnet"])
    browser.evaluate("page.choose('k1/r1'); page.choose('k1/r2', true)")
    answer = browser.evaluate("probe.side()")
    assert "One kernel (k1)" in answer and "(register)" in answer and "never reaches global memory" in answer


def test_a_path_that_leaves_two_kernels_is_named(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """The branch of a residual block goes round by a convolution: the two kernels at its ends cannot be one."""
    open_page(browser, pages["resnet"])
    rejected = next(r for r in resnet().explain(json=True)["rejected"] if r["reason"] == "not-convex")
    kernels = resnet().explain(json=True)["kernels"]
    ends = [next(f"k{n}" for n, k in enumerate(kernels) if rejected[side] in k["nodes"]) for side in ("first", "second")]
    browser.evaluate(f"page.choose('{ends[0]}'); page.choose('{ends[1]}', true)")
    answer = browser.evaluate("probe.side()")
    assert "would wait for itself" in answer and "through convolution" in answer and rejected["detail"] in answer


def test_search_finds_an_operator_and_opens_the_way_to_it(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["resnet"])
    browser.evaluate("graphView.closeAll(); document.getElementById('search').focus()")
    browser.type("softmax reduce.max")
    assert browser.evaluate("probe.count('#found li')") >= 1
    browser.press("Enter")
    assert browser.evaluate("document.querySelector('#canvas g.box.chosen').dataset.id") == "k50/gpu_0_softmax_1_max"
    assert browser.evaluate("probe.chosenIsSeen()") and browser.problems == []


def test_a_double_click_opens_a_box_and_closes_it(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["resnet"])
    browser.evaluate("graphView.closeAll()")
    x, y = browser.evaluate("probe.place('k1')")
    before = browser.evaluate("probe.count('#canvas g.box')")
    browser.click(x, y, count=2)
    assert browser.evaluate("probe.count('#canvas g.box')") == before + 3
    browser.click(*browser.evaluate("probe.place('k1')"), count=2)
    assert browser.evaluate("probe.count('#canvas g.box')") == before and browser.problems == []


def test_shared_memory_and_stages_are_drawn(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["attention"])
    kernels = attention().explain(json=True)["kernels"]
    number = next(n for n, k in enumerate(kernels) if k["shared"])
    browser.evaluate(f"page.choose('k{number}')")
    assert browser.evaluate("probe.count('#side svg .bar')") == len(kernels[number]["shared"])
    assert "shared memory of a block" in browser.evaluate("probe.side()")


def test_a_measured_run_has_its_times(browser: chromium.Browser, tmp_path: Path) -> None:
    """On the host: every step of the run is in the timeline, and the panel has measured beside predicted."""
    program = tilefuse.compile(str(EXAMPLES / "softmax.txt"), device="host")
    open_page(browser, program.view(tmp_path / "softmax.html", arguments=drawn_inputs(program)))
    browser.evaluate("page.tab('time')")
    text = browser.evaluate("document.getElementById('time').innerText")
    assert "a call takes" in text and "No run was measured" not in text
    gaps = browser.evaluate("gapsOf(page.p, timelineOf(page.p)).map(g => [g.where, g.start, g.us])")
    steps = browser.evaluate("timelineOf(page.p).map(s => [s.start, s.us])")
    assert [where for where, _, _ in gaps][0] == "before the first step" and steps[0][0] == pytest.approx(gaps[0][2])
    covered = sum(us for _, us in steps) + sum(us for _, _, us in gaps)
    assert covered == pytest.approx(max(start + us for start, us in [*steps, *((s, u) for _, s, u in gaps)]), abs=0.3 * (len(steps) + 2))
    assert browser.evaluate("probe.count('#time .bar')") >= len(program.explain(json=True)["steps"])
    assert "measured" in browser.evaluate("document.getElementById('summary').innerText") and browser.problems == []


def test_two_plans_side_by_side(browser: chromium.Browser, tmp_path: Path) -> None:
    """A plan beside one kernel a node: the sums of both, and where they differ."""
    apart = tilefuse.compile(str(EXAMPLES / "attention.txt"), target="h200", fuse=False)
    told = [program_data(attention().explain(json=True), {}, label="fused", side=0),
            program_data(apart.explain(json=True), {}, label="apart", side=1)]
    path = tmp_path / "both.html"
    path.write_text(page_text("fused beside apart", told), encoding="utf-8")
    open_page(browser, path)
    browser.evaluate("page.tab('compare')")
    text = browser.evaluate("document.getElementById('compare').innerText")
    assert "fused beside apart" in text and "places where the kernels differ" in text
    assert str(apart.explain(json=True)["num_kernels"]) in text and browser.problems == []


def test_ten_thousand_nodes_open_with_a_screenful(browser: chromium.Browser, tmp_path: Path) -> None:
    """Few boxes at first, readable, and a search leads into the middle of them."""
    path = tmp_path / "large.html"
    path.write_text(page_text("large", [program_data(chain(10_000), {})]), encoding="utf-8")
    open_page(browser, path)
    assert browser.evaluate("page.p.boxes.size") > 12_000
    assert browser.evaluate("probe.count('#canvas g.box')") <= 120
    assert browser.evaluate("probe.overlaps('#canvas text')") == []
    spent_ms = browser.evaluate("(() => { const t = performance.now(); page.goTo('k1000/n1000_3'); return performance.now() - t; })()")
    assert browser.evaluate("document.querySelector('#canvas g.box.chosen').dataset.id") == "k1000/n1000_3"
    assert browser.evaluate("probe.overlaps('#canvas text')") == [] and browser.evaluate("probe.boxes()") == []
    assert browser.problems == [] and spent_ms < 10_000


def test_any_two_operators_have_a_price_or_the_reason_why_there_is_none(browser: chromium.Browser, tmp_path: Path) -> None:
    """Inside a kernel the cut, between kernels the answer of the planner or the call that lies between them; equal kernels are alike."""
    made = encoder()
    answers = page_answers(made.plan, made.device, Options())
    open_page(browser, made.view(tmp_path / "encoder.html", answers=answers))
    kernel, place = next(a["cut"] for a in answers if a.get("cut"))
    nodes = next(k["nodes"] for k in made.explain(json=True)["kernels"] if k["name"] == kernel)
    number = next(n for n, k in enumerate(made.explain(json=True)["kernels"]) if k["name"] == kernel)
    browser.evaluate(f"page.choose('k{number}/{nodes[0]}'); page.choose('k{number}/{nodes[place]}', true)")
    told = next(a for a in answers if a.get("cut") == [kernel, place])
    side = browser.evaluate("probe.side()")
    assert f"Cut in front of %{nodes[place]}" in side and told["detail"] in side and " instead of " in side
    resnet_made = resnet()
    open_page(browser, resnet_made.view(tmp_path / "resnet.html", answers=page_answers(resnet_made.plan, resnet_made.device, Options())))
    silent = browser.evaluate("""(() => { const p = page.p, ids = p.order.filter((_, n) => n % 5 === 0), found = [];
        for (const a of ids) for (const b of ids) if (a < b) {
          const [x, y] = [p.boxes.get(a), p.boxes.get(b)];
          const told = whyPanel.priced(p, x, y, x, y);
          if (!told.some(t => /instead of|no other choice|has no price|was not priced/.test(t))) found.push([a, b]);
        } return found; })()""")
    assert silent == [] and browser.problems == []


def test_layers_have_their_times_unfused_and_fused(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """Over all layers and their equals they add up to the program's."""
    open_page(browser, pages["resnet"])
    totals = resnet().explain(json=True)["totals"]
    sums = browser.evaluate("""(() => { const p = page.p, groups = [...p.boxes.values()].filter(b => b.kind === "group" && !b.parent);
        const all = [...groups.map(b => graphView.stepsIn(b)), p.order.filter(id => !p.boxes.get(id).parent)].map(s => layerTimes(p, s));
        return [d3.sum(all, t => t.unfused), d3.sum(all, t => t.fused)]; })()""")
    assert sums == pytest.approx([totals["unfused_us"], totals["us"]], rel=1e-3)
    browser.evaluate("page.tab('time')")
    assert "layer by layer" in browser.evaluate("document.getElementById('time').innerText")


def test_tiles_tell_what_is_alive_in_them(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """A softmax over rows: a row of two values at once on the grid, and a part of it in a block."""
    open_page(browser, pages["attention"])
    live = browser.evaluate("[...liveSizes(page.p, page.p.e.kernels[0])].map(([level, f]) => [level, f.bytes])")
    assert [level for level, _ in live] == [t["level"] for t in attention().explain(json=True)["kernels"][0]["tiles"]]
    sizes = [size for _, size in live]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] >= 2
    browser.evaluate("page.choose('k0')")
    assert "live " in browser.evaluate("probe.side()")


def test_inputs_and_weights_have_the_users_names(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    open_page(browser, pages["encoder"])
    labels = browser.evaluate("[...page.p.boxes.values()].filter(b => b.kind === 'weight').map(b => b.label)")
    assert "layers.0.linear1.weight" in labels and not [name for name in labels if name.startswith("p_")]
    open_page(browser, pages["resnet"])
    assert "gpu_0/conv1_w_0" in browser.evaluate("[...page.p.boxes.values()].filter(b => b.kind === 'weight').map(b => b.label)")
