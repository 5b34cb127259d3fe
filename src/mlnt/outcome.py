"""What came of a training: its figures, and the files that its run folder is left with."""

import logging
import shlex
from dataclasses import dataclass
from typing import Any

from mlnt.all_labels import Judged, judge_all_labels
from mlnt.data.dataset import Dataset
from mlnt.data.image_files import ImageFiles
from mlnt.errors import kind_and_reason
from mlnt.evaluation import accuracy_by_class, predict_probabilities, readable
from mlnt.filtered import write_filtered
from mlnt.gallery import GALLERY, write_gallery
from mlnt.label_issues import LabelIssues, rank_labels, write_label_issues
from mlnt.recipes import Result, summarise
from mlnt.report import write_report
from mlnt.runs import FAULTS, FILTERED, LABEL_ISSUES, SUMMARY, RunFolder
from mlnt.training import Trainer

log = logging.getLogger("mlnt")


@dataclass(frozen=True)
class Outcome:
    result: Result
    dataset: Dataset
    judged: Judged  # all labels, by the deployed model
    issues: LabelIssues  # the same, most suspicious first
    summary: dict[str, Any]

    @classmethod
    def of(cls, result: Result, trainer: Trainer, dataset: Dataset) -> "Outcome":
        judged = judge_all_labels(result, dataset)
        issues = rank_labels(judged.labels, judged.judgement, judged.seen, judged.rows)
        summary = summarise(result, trainer)
        if (test := trainer.test) is not None:
            probabilities = predict_probabilities(result.model, test.inputs, trainer.world)
            rows = readable(test.inputs)
            summary["test_by_class"] = accuracy_by_class(probabilities[rows], test.labels[rows])
        summary["labels"] = len(issues.score)
        summary["is_held_out"] = dataset.held_out is not None
        summary["label_issues"] = issues.in_words(dataset.classes)
        if isinstance(trainer.train.inputs, ImageFiles):
            summary["unreadable_pictures"] = len(trainer.train.inputs.faults.found)
        return cls(result, dataset, judged, issues, summary)

    def write(self, run: RunFolder, summary: dict[str, Any]) -> None:
        """The files but the report; `summary` may have more in it than this one."""
        result, judged, dataset = self.result, self.judged, self.dataset
        run.save_state("best", result.model.state_dict())
        for name, model in result.stages[-1].models.items():
            run.save_state(name, model.state_dict())
        rows = judged.rows.tolist()
        kept_of = dict(zip(rows, judged.kept, strict=True))
        texts_of = None if judged.texts is None else dict(zip(rows, judged.texts, strict=True))
        unseen_N = ~judged.seen
        labels_of_unseen = judged.labels[unseen_N].tolist()
        unseen = dict(zip(judged.rows[unseen_N].tolist(), labels_of_unseen, strict=True))
        run.write(
            LABEL_ISSUES,
            lambda path: write_label_issues(
                path, self.issues, dataset.classes, kept_of, texts_of, unseen
            ),
        )
        suspects = self.issues.positions[self.issues.flagged]
        run.write(GALLERY, lambda path: write_gallery(path, dataset, suspects))
        if isinstance(dataset.train.inputs, ImageFiles) and dataset.train.inputs.faults.found:
            run.write(FAULTS, dataset.train.inputs.faults.write)
        if (kept := result.kept) is not None:
            run.write(FILTERED, lambda path: write_filtered(path, kept, dataset))
        run.write_json(SUMMARY, summary)  # last: a run that has it is finished
        run.checkpoints.remove()


def draw_report(run: RunFolder) -> None:
    """It can be made again at any time: what goes wrong here takes nothing from the run."""
    try:
        write_report(run)
    except Exception as error:
        command = shlex.join(["mlnt", "report", str(run.path)])
        words = "the report could not be made (%s); `%s` makes it again"
        log.warning(words, kind_and_reason(error), command)
