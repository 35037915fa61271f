from csd_lab.fidelity.board_fidelity import ComparedFigure
from csd_lab.generate.boards import COLOURS, draw


def test_each_board_is_drawn_however_many_there_are() -> None:
    names = [f"Board <{number}>" for number in range(2 * len(COLOURS))]
    figures = [ComparedFigure("network", name, "alexnet", "ms", 20.0, 25.0, -0.2, True, "source") for name in names]
    picture = draw(figures)
    assert all(f"Board &lt;{number}&gt;" in picture for number in range(len(names)))
    assert picture.count('fill-opacity="0.7"') == len(names)
