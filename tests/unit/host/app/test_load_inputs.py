"""What a job minimises, as its keys and the user's own code say it."""

from pathlib import Path

import yaml

from host.app.load_inputs import choose_objective
from host.config.job_file import read_job
from host.config.resolve import load_plugins
from host.core.datasets import load_dataset


def test_each_augmentation_has_its_own_options_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def noise(batch, generator, share=0.1):\n    return batch\n")
    augment = [{"name": "mine.py:noise", "share": 0.2}, "flip", {"name": "mine.py:noise", "share": 0.7}]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"model": "digits_cnn", "data": {"source": "digits"}, "augment": augment}))
    job = read_job(path)
    found = choose_objective(job, load_dataset("digits", 0), load_plugins(job, path)).augment
    assert [(each.name, each.arguments.get("share")) for each in found] == [
        ("mine.py:noise", 0.2),
        ("flip", None),
        ("mine.py:noise", 0.7),
    ]
