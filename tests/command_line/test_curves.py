import xml.etree.ElementTree

from bert_estimator.command_line import curves

SVG = "{http://www.w3.org/2000/svg}"


def test_curves_without_points_and_of_one_value():
    root = xml.etree.ElementTree.fromstring(curves.svg([("empty", {"a": []})]))
    assert not list(root.iter(f"{SVG}polyline"))
    root = xml.etree.ElementTree.fromstring(curves.svg([("one", {"a": [(3, 1.0)]})]))
    assert [e.get("points") for e in root.iter(f"{SVG}polyline")] == ["70.0,140.0"]
