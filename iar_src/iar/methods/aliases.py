"""Other ways to write an answer that mean exactly the same: numbers, units, dates, leading articles."""

import re

from iar.methods.lexicon import MONTHS, NUMBER_WORDS

_WORD_OF = {value: word for word, value in NUMBER_WORDS.items()}
_MONTH = "|".join(MONTHS)
_SYMBOLS = {
    "kilometres": "km",
    "metres": "m",
    "centimetres": "cm",
    "millimetres": "mm",
    "kilograms": "kg",
    "grams": "g",
    "litres": "l",
    "millilitres": "ml",
    "hectares": "ha",
    "percent": "%",
}


def aliases_of(kind: str, answer: str) -> tuple[str, ...]:
    """Return the equivalents of an anchor text of this kind, the answer itself not among them."""
    if kind in ("quantity", "number"):
        found = _amount_aliases(answer)
    elif kind == "date":
        found = _date_aliases(answer)
    else:
        bare = re.sub(r"^(?:the|a|an)\s", "", answer, flags=re.IGNORECASE)
        found = [bare, re.sub(r"\sof\s\d{4}$", "", bare)]
    return tuple(dict.fromkeys(alias for alias in found if alias and alias != answer))


def _amount_aliases(answer: str) -> list[str]:
    """Digits for number words and back; without thousands marks; the unit's symbol; the bare number."""
    number = re.match(r"\S+(?: \d{3})*", answer).group()  # type: ignore[union-attr]
    unit = answer[len(number) :].strip()
    plain = re.sub(r"(?<=\d)[, ](?=\d{3})", "", number)
    numbers = [number, plain]
    if number.casefold() in NUMBER_WORDS:
        numbers.append(str(NUMBER_WORDS[number.casefold()]))
    elif unit.isascii() and re.fullmatch(r"[1-9]\d?", plain):
        numbers.append(_WORD_OF[int(plain)])
    units = [unit, _SYMBOLS[unit]] if unit in _SYMBOLS else [unit]
    return [f"{n} {u}".strip() for n in numbers for u in units] + (numbers if unit else [])


def _date_aliases(answer: str) -> list[str]:
    """Day-month-year in the other usual orders."""
    if match := re.fullmatch(rf"(\d{{1,2}})\.?\s({_MONTH})(?:,?\s(\d{{4}}))?", answer):
        day, month, year = match.groups()
    elif match := re.fullmatch(rf"({_MONTH})\s(\d{{1,2}}),?(?:\s(\d{{4}}))?", answer):
        month, day, year = match.groups()
    else:
        return []
    tail, comma_tail = (f" {year}", f", {year}") if year else ("", "")
    return [f"{day} {month}{tail}", f"{month} {day}{comma_tail}", f"{month} {day}{tail}"]
