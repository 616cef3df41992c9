"""The page in a browser: what is clicked, typed and pressed."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import calque
from calque.view import overlays
from tests.view.browsing import drawn, needs_browser, opened
from tests.view.models import GPT, MODELS
from tests.view.test_laws import NASTY, Hostile

pytestmark = needs_browser()


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = calque.record(GPT(3).eval(), torch.arange(8)[None])
    counted = {"FLOPs": overlays.flops(recording)}
    view = calque.show(recording, overlays=counted, levels=True)
    return view.save(tmp_path_factory.mktemp("page") / "gpt.html")


@pytest.fixture
def page(gpt: Path) -> Iterator[Any]:
    with opened(gpt) as page:
        page.select_option("#colour", "family")
        drawn(page)
        yield page


def box(page: Any, id: str) -> Any:
    return page.locator(f'g.box[data-id="{id}"]')


def panel(page: Any) -> str:
    return page.locator("#panel").inner_text()


def test_a_click_tells_all_of_a_node(page: Any) -> None:
    box(page, "scaled_dot_product_attention").click()
    text = panel(page)
    for known in ("float32[1, 2, 8, 8]", "is_causal", "models.py", "ATen", "StableHLO", "rule"):
        assert known.lower() in text.lower()
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()


def test_a_repeated_block_is_drawn_once_and_opens_and_closes(page: Any) -> None:
    assert page.get_by_text("Block ×3").count() == 1
    assert page.locator('g.box[data-id^="scaled_dot_product_attention"]').count() == 1
    run = page.locator('g.box[data-kind="group"]', has=page.locator("g.toggle")).first
    run.locator("g.toggle").click()
    page.wait_for_function(
        "() => !document.querySelector('[data-id=scaled_dot_product_attention]')"
    )
    page.get_by_text("Block ×3").click(force=True)
    page.keyboard.press("u")
    box(page, "h/2").wait_for()
    assert page.locator('g.box[data-id^="h/"]').count() >= 3


def test_search_finds_and_opens(page: Any) -> None:
    page.keyboard.press("c")
    page.keyboard.press("/")
    page.keyboard.type("h.2.mlp gelu")
    assert page.locator("#results li").all_inner_texts()[-1].startswith("gelu")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert page.locator("#panel h2").inner_text() == "gelu"
    assert page.locator("#results").is_hidden()
    page.wait_for_selector('g.box[data-id^="gelu"]')


def test_keys_move_along_the_edges(page: Any) -> None:
    box(page, "ids").click()
    seen = []
    for _ in range(3):
        page.keyboard.press("ArrowDown")
        seen.append(page.locator("#panel h2").inner_text())
    assert seen[:2] == ["wte: Embedding", "add"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.locator("#panel h2").inner_text() in ("wte: Embedding", "wpe: Embedding")


def test_what_leads_to_the_selection_and_from_it_is_highlighted(page: Any) -> None:
    box(page, "wpe").click()
    page.wait_for_function(
        "() => document.querySelector('[data-id=ids]').getAttribute('opacity') < 1"
    )
    assert box(page, "arange").get_attribute("opacity") == "1"
    page.keyboard.press("h")
    page.wait_for_function(
        "() => document.querySelector('[data-id=ids]').getAttribute('opacity') == 1"
    )


def test_weights_are_drawn_when_asked_for(page: Any) -> None:
    before = page.locator("g.box").count()
    page.keyboard.press("w")
    page.wait_for_function(f"() => document.querySelectorAll('g.box').length > {before}")
    assert page.locator("#weights").get_attribute("aria-pressed") == "true"


def test_colours_follow_the_choice(page: Any) -> None:
    fill = "() => document.querySelector('[data-id=ids] rect').getAttribute('fill')"
    family = page.evaluate(fill)
    page.select_option("#colour", "overlay:FLOPs")
    page.wait_for_function(f"() => ({fill})() !== '{family}'")
    assert "FLOPs" in page.locator("#legend").inner_text()
    page.select_option("#colour", "served")
    assert "rule" in page.locator("#legend").inner_text()


def test_an_error_that_is_no_number_is_the_worst(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x + 1).relu())
    numbers = {"error": {"add": float("nan"), "relu": 0.5}}
    with opened(calque.show(graph, overlays=numbers).save(tmp_path / "nan.html")) as page:
        drawn(page)
        assert "not finite" in box(page, "add").text_content()
        assert "0.5" in box(page, "relu").text_content()


def test_dark_by_preference_and_by_key(gpt: Path) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    with opened(gpt, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.keyboard.press("d")
        light = page.evaluate(ground)
        assert sum(map(int, dark[4:-1].split(","))) < sum(map(int, light[4:-1].split(",")))


def test_a_saved_picture_is_svg_by_itself(page: Any, tmp_path: Path) -> None:
    with page.expect_download() as download:
        page.locator("#save-svg").click()
    download.value.save_as(tmp_path / "saved.svg")
    picture = ElementTree.parse(tmp_path / "saved.svg").getroot()
    text = "".join(picture.itertext())
    assert "scaled_dot_product_attention" in text
    with page.expect_download() as download:
        page.locator("#save-png").click()
    download.value.save_as(tmp_path / "saved.png")
    assert (tmp_path / "saved.png").read_bytes().startswith(b"\x89PNG")


def test_names_of_a_model_are_text(tmp_path: Path) -> None:
    model = Hostile([name for name in NASTY if name])
    path = calque.show(model, torch.ones(1, 2)).save(tmp_path / "hostile.html")
    with opened(path) as page:
        page.on("dialog", lambda dialog: pytest.fail("a name was run"))
        page.keyboard.press("e")
        for key in ["ArrowDown"] * 6:
            page.keyboard.press(key)
        assert page.locator("img").count() == 0
        page.locator("#search").fill("<script>")
        assert "<script>alert(1)</script>" in page.locator("#results").inner_text()


@pytest.mark.conformance
@pytest.mark.parametrize("name", MODELS)
def test_models_open_fast_and_take_every_key(name: str, tmp_path: Path) -> None:
    model, args = MODELS[name]()
    path = calque.show(model, *args).save(tmp_path / "model.html")
    with opened(path) as page:
        for key in "ewuhcd0+-e":
            page.keyboard.press(key)
            page.wait_for_timeout(30)
        assert page.locator("g.box").count() or page.locator("path.many").count()
        page.locator("#save-svg").click()


@pytest.mark.conformance
def test_five_thousand_nodes_stay_few_elements(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    made = [graph.placeholder("x")]
    for index in range(4998):
        made.append(graph.call_function(torch.add, (made[-1], made[max(0, index - index % 29)])))
    graph.output(made[-1])
    path = calque.show(torch.fx.GraphModule(torch.nn.Module(), graph)).save(tmp_path / "many.html")
    with opened(path) as page:
        assert page.locator("#world > *").count() < 2000
        window = "[innerWidth, innerHeight]"
        within = f"(r => r.x > 0 && r.y > 0 && r.right < {window}[0] && r.bottom < {window}[1])"
        seen = f"b => b.some(each => {within}(each.getBoundingClientRect()))"
        assert page.locator("g.box").evaluate_all(seen)
        page.keyboard.press("0")
        page.wait_for_selector("path.many", state="attached")
        assert page.locator("#world > *").count() < 100
        assert len(json.loads(page.locator("#data").inner_text())["nodes"]) == 5000
