"""docs/images/predicted.svg shows what the shipped calibration predicts of the published sample."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.prediction_plot import PICTURE, TABLE, compared, drawn


def test_the_picture_is_that_of_the_shipped_calibration() -> None:
    assert PICTURE.read_text() == drawn(compared(TABLE)), "python -m tools.prediction_plot"


def test_it_has_a_point_for_each_compared_time() -> None:
    rows = compared(TABLE)
    picture = ElementTree.fromstring(drawn(rows))
    points = [each for each in picture.iter("{http://www.w3.org/2000/svg}circle") if each.get("fill-opacity")]
    assert len(points) == len(rows) > 40
