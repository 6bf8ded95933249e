"""The notebook runs from top to bottom in a real kernel, with fewer steps than a reader takes."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "mempo_quickstart.ipynb"


def test_it_runs(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("MEMPO_STEPS", "2")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert "image/svg+xml" in shown  # the plot
    assert "text/html" in shown  # the trajectory
    assert "answer:" in outputs[-1]["text"]
