"""Prompt styles: what the model reads, and that its answer is found where it was told to put it."""

import pytest

from trustclip.train.problems.prompts import STYLES, messages, set_chat_template
from trustclip.train.problems.verify import extract_answer

OBEDIENT = {
    "solution": "work<end_working_out><SOLUTION>3</SOLUTION>",
    "boxed": r"work, so \boxed{3}",
    "answer": "work\nAnswer: $3$",
    "plain": "<SOLUTION>3</SOLUTION>",
}


@pytest.mark.parametrize("name", STYLES)
def test_problem_text_is_kept_and_the_obedient_answer_found(name):
    problem = r"  What is $1+2$? {braces} %s \n "
    conversation = messages(problem, name)
    assert problem in conversation[-1]["content"]
    assert [m["role"] for m in conversation][-1] == "user"
    assert extract_answer(OBEDIENT[name], STYLES[name].extraction) == "3"
    assert messages("1+2", "plain") == [{"role": "user", "content": "1+2"}]


@pytest.fixture
def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"<eos>": 0, "<unk>": 1}, unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), eos_token="<eos>"
    )


def test_chat_template_renders_system_eos_user_and_opening(tokenizer):
    set_chat_template(tokenizer, "solution")
    prompt = messages("What is 1+2?", "solution")
    opened = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    system = prompt[0]["content"]
    assert opened == f"{system}<eos>What is 1+2?<start_working_out>"
    turn = {"role": "assistant", "content": "<start_working_out>3"}
    assert tokenizer.apply_chat_template([*prompt, turn], tokenize=False) == f"{opened}3<eos>"


def test_generation_prompts_of_the_other_styles(tokenizer):
    for name, ending in {"boxed": "\n", "answer": "\n", "plain": ""}.items():
        tokenizer.chat_template = None
        set_chat_template(tokenizer, name)
        prompt = messages("1+2", name)
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        assert text.endswith(prompt[-1]["content"] + ending)


def test_an_existing_template_is_left_alone(tokenizer):
    tokenizer.chat_template = "mine"
    set_chat_template(tokenizer, "solution")
    assert tokenizer.chat_template == "mine"


def test_a_tokenizer_without_an_end_token_is_refused(tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no eos_token"):
        set_chat_template(tokenizer)
