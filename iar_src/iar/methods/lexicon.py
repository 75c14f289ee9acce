"""Small word tables of the rule-based teacher, English where not said otherwise.

Every table only sharpens a rule that works without it: a language with no entry loses number words,
date variants and the resolution of pronouns, nothing else.
"""


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a table."""
    return tuple(text.split())


# Begin a sentence with a capital without being a name; end a number's unit.
FUNCTION_WORDS = frozenset(
    _words("""a about above across after all also although among an and any are as at be because been before behind
    below between but by can could did do does down during each every few for from had has have he her here
    his how if in into is it its many may might more most must near nearly no nobody none not of off on once
    only onto or other our out over same several shall she should since so some such than that the their
    them then there these they this those though three through thus to today together toward towards two
    under until up upon was we were what when where whether which while who whose why will with within
    without would yet you your later ago more less long old high deep wide times onwards""")
)

# May stand inside a name between two capitalised words, in several languages.
NAME_PARTICLES = frozenset(_words("of the de del della di da do dos du des van von der den la le el y e al bin ibn"))

# A full stop after these ends no sentence.
ABBREVIATIONS = frozenset(_words("mr mrs ms dr st prof no vs etc cf ca fig vol ed eg ie approx jr sr inc bzw nr hr fr"))

# Refer back to an earlier sentence when they open one.
SUBJECT_PRONOUNS = frozenset(_words("it he she they"))
POSSESSIVE_PRONOUNS = frozenset(_words("its his her their"))
DEMONSTRATIVES = frozenset(_words("this these that those such there then both neither either"))

COPULAS = ("is", "was", "are", "were")
DEFINING_VERBS = tuple(f"{copula} {naming}" for naming in ("called", "known as") for copula in COPULAS)
NAMING_WORDS = ("called", "named", "known as", "nicknamed", "entitled", "titled")

MONTHS = _words("January February March April May June July August September October November December")

_SMALL = _words("""zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen""")
_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBER_WORDS = {word: value for value, word in enumerate(_SMALL)} | {
    tens + (f"-{_SMALL[one]}" if one else ""): 10 * (index + 2) + one
    for index, tens in enumerate(_TENS)
    for one in range(10)
}

# After four digits these show an amount and not a year.
MEASURES = frozenset(
    _words("""metres meters kilometres kilometers centimetres centimeters millimetres millimeters miles feet inches
    yards acres hectares litres liters millilitres milliliters gallons grams grammes kilograms kilogrammes
    tonnes tons pounds ounces degrees percent people men women children inhabitants hours minutes seconds
    days weeks months years m km cm mm kg g l ml ha mb gb kb tb euros dollars crowns""")
)

# Han measure words that belong to the number before them.
HAN_MEASURES = (
    "公里|千米|厘米|毫米|公斤|千克|公顷|平方米|立方米|小时|分钟|世纪|千瓦|摄氏度|米|克|吨|升|秒"
    "|天|日|岁|度|元|人|名|个|座|次|种|年|月|%"
)
