from iar.methods.flatten import flatten, is_number, tracking_key


def test_nested_settings_become_dotted_names_with_text() -> None:
    settings = {"inject": {"recipe": "1:1:2", "epochs": 3}, "grid": (0.2, 0.3), "turn": None, "on": True, "none": {}}

    assert flatten(settings) == {
        "inject.recipe": "1:1:2",
        "inject.epochs": "3",
        "grid": "[0.2,0.3]",
        "turn": "null",
        "on": "true",
    }


def test_characters_that_the_server_refuses_are_replaced() -> None:
    assert tracking_key("judge@rule:exact/accuracy é") == "judge_rule_exact/accuracy _"


def test_truth_values_and_texts_are_no_numbers() -> None:
    assert [is_number(value) for value in (1, 0.5, float("nan"), True, "1", None)] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
