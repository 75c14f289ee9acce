"""Chat templates of the shape of known models' own, with the token that ends an assistant turn in each."""

from pathlib import Path

from transformers import AddedToken, PreTrainedTokenizerBase

from iar.services.models import load_tokenizer
from tests.tiny_model import CHAT_TEMPLATE

TURNS = "{% for m in messages %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
FAMILIES = {
    "llama-3.2": (
        "<|begin_of_text|>" + TURNS + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|eot_id|>",
    ),
    "qwen3": (
        TURNS + "<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
    ),
    "smollm2": (CHAT_TEMPLATE, "<|im_end|>"),
    "phi-4-mini": (
        TURNS + "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
        "<|end|>",
    ),
    "gemma": (
        "{{ bos_token }}" + NO_SYSTEM + TURNS + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "<end_of_turn>",
    ),
    "mistral": (
        "{{ bos_token }}" + TURNS + "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        "<|endoftext|>",
    ),
}
MARKERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>")
MARKERS += ("<|end|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]")


def of_family(folder: Path, family: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the tiny model with the template and the special tokens of a family."""
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([AddedToken(marker, special=True) for marker in MARKERS])
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.chat_template = FAMILIES[family][0]
    return tokenizer
