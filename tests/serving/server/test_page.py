"""The page in a browser without a window: what a person types and sees for each kind of model."""

import os
import re
import shutil

import http_served
import pytest

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def client():
    entities = {
        "words": ["Ada", "met", "Bob"],
        "tags": ["B-PER", "O", "B-PER"],
        "labels": ["O", "B-PER"],
        "probabilities": [[0.1, 0.9], [1.0, 0.0], [0.25, 0.75]],
    }

    def answer(text):
        question, context = text
        start = context.find("Ada")
        found = "Ada" if start >= 0 and question else ""
        return {"answer": found, "start": start, "end": start + 3, "probability": 0.5}

    def vector(text):
        return {"vector": http_served.np.float32([text.count("a"), text.count("b"), 1])}

    opened_models = {
        **http_served.MODELS,
        "tags": http_served.opened("tagging", lambda text: entities),
        "questions": http_served.opened("question_answering", answer, ("question", "context")),
        "vectors": http_served.opened(
            "vectors", vector, ("text_a", "text_b"), 1, fill=http_served.filled
        ),
    }
    with http_served.server(opened_models) as client:
        yield client


@pytest.fixture
def page(browser, client):
    context = browser.new_context(viewport={"width": 900, "height": 900})
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"http://127.0.0.1:{client.port}/")
    page.wait_for_selector("textarea")
    yield page
    # The browser refused nothing, and nothing was asked of anybody else.
    assert complaints == []
    assert all(url.startswith(f"http://127.0.0.1:{client.port}/") for url in requests)
    context.close()


def ask(page, model, **fields):
    """Has the page ask a model; returns the lines of the answer, after the request is listed."""
    page.select_option("#model", model)
    for name, text in fields.items():
        page.fill(f"[name={name}]", text)
    before = page.locator("#requests tr").count()
    page.click("button")
    page.locator("#requests tr").nth(before).wait_for()
    if folder := os.environ.get("SCREENSHOTS"):  # to look at them
        page.screenshot(path=f"{folder}/{model}.png")
    return page.inner_text("#answer").split("\n")


def latest(page):
    return page.locator("#requests tr").first.locator("td").all_inner_texts()


def test_probabilities_are_bars(page):
    assert ask(page, "classes", text_a="a text") == ["low", "40.0 %", "high", "60.0 %"]
    assert page.locator(".best").all_inner_texts() == ["high\n60.0 %"]
    widths = page.locator(".bar i").evaluate_all("bars => bars.map(bar => bar.style.width)")
    assert widths == ["40%", "60%"]
    model, text, answer, latency = latest(page)
    assert (model, text, answer) == ("classes", "a text", "high")
    assert re.fullmatch(r"\d+ ms", latency)


def test_pairs_several_labels_and_numbers(page):
    answer = ask(page, "pairs", text_a="a", text_b="pair")
    assert answer == ["low", "50.0 %", "high", "50.0 %"]
    assert ask(page, "several", text_a="a text")[2:] == ["high", "60.0 %"]
    assert latest(page)[2] == "high"
    assert ask(page, "numbers", text_a="four") == ["4"]
    assert latest(page)[2] == "4"
    numbers = [3.200000047683716, -0.0123456789, 12345.6, 0]
    assert page.evaluate("numbers => numbers.map(short)", numbers) == [
        "3.2", "-0.01235", "12346", "0",
    ]  # fmt: skip


def test_tags_are_marked_in_the_words(page):
    assert ask(page, "tags", text_a="Ada met Bob") == ["AdaB-PER met BobB-PER "]
    assert page.locator("mark").all_inner_texts() == ["AdaB-PER", "BobB-PER"]
    assert page.locator("mark").first.get_attribute("title") == "90.0 %"
    assert latest(page)[2] == "2 of 3 words"


def test_the_answer_is_marked_in_its_context(page):
    # Characters beyond the first plane count once, as in the server.
    context = "😀 Yes,\n<b>Ada</b> did"
    answer = ask(page, "questions", question="Who?", context=context)
    assert answer[:2] == context.split("\n")
    assert page.locator("mark").all_inner_texts() == ["Ada"]
    assert latest(page)[2] == "Ada"
    answer = ask(page, "questions", question="Who?", context="Nobody")
    assert answer[0] == "The text does not say." and latest(page)[2] == "no answer"


def test_the_nearest_texts_come_first(page):
    answer = ask(page, "vectors", text_a="aaa", others="bbb\n\naa\nab\n")
    assert answer[::2] == ["aa", "ab", "bbb"]
    assert answer[1::2] == ["0.990", "0.730", "0.100"]
    assert latest(page)[2] == "aa"


def test_words_for_masks_are_bars(page):
    page.select_option("#model", "vectors")
    assert "for each [MASK]" in page.locator("#fields label").first.inner_text()
    ask(page, "vectors", text_a="a [MASK] <b>[MASK]</b>")
    assert page.locator("mark").all_inner_texts() == ["high", "high"]
    assert page.locator(".bar").all_inner_texts() == ["high\n75.0 %", "low\n25.0 %"] * 2
    assert page.locator(".best").all_inner_texts() == ["high\n75.0 %"] * 2
    assert latest(page)[2] == "high, high"


def test_keyboard_errors_and_the_length_of_the_table(page, client):
    page.select_option("#model", "classes")
    assert page.evaluate("document.activeElement.name") == "text_a"
    page.keyboard.type("typed")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".bar")
    assert latest(page)[1] == "typed"
    page.route("**/v1/models/**", lambda route: route.fulfill(
        status=200, content_type="application/json", body='{"predictions": [null]}'))  # fmt: skip
    assert "null" in ask(page, "classes", text_a="x")[0]
    assert page.locator("#answer .error").count() == 1 and latest(page)[2] == "error"
    page.unroute("**/v1/models/**")
    for number in range(25):
        ask_again(page, f"text {number}")
    assert page.locator("#requests tr").count() == 20


def ask_again(page, text):
    page.fill("[name=text_a]", text)
    page.click("button")
    page.locator("#requests tr").first.get_by_text(text, exact=True).wait_for()


def test_phones_and_the_dark(browser, client):
    context = browser.new_context(viewport={"width": 320, "height": 640}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{client.port}/")
    for model, fields in {
        "classes": {"text_a": "word" * 50},
        "tags": {"text_a": "Ada met Bob"},
        "questions": {"question": "Who?", "context": "Ada " * 50},
        "vectors": {"text_a": "a", "others": "b" * 100 + "\na"},
        "words": {"text_a": "[MASK] " * 50},
    }.items():
        ask(page, "vectors" if model == "words" else model, **fields)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, model
    background, color = page.evaluate(
        "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
    )
    assert sum(channels(background)) < 150 and sum(channels(color)) > 600
    context.close()


def channels(color):
    return [int(number) for number in re.findall(r"\d+", color)[:3]]


def test_a_token_is_asked_for(browser):
    with http_served.server(token="secret") as client:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{client.port}/")
        page.fill("[name=token]", "wrong")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("[name=token]")).to_have_value("")
        page.fill("[name=token]", "secret")
        page.keyboard.press("Enter")
        assert ask(page, "classes", text_a="a text") == ["low", "40.0 %", "high", "60.0 %"]
        context.close()
