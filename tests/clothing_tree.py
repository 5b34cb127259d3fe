"""A small tree in the form of Clothing1M: pictures of coloured noise that can be learnt."""

import colorsys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mlnt.data.clothing1m import CLASSES


def make_small_tree(
    folder: Path,
    per_class: int,
    classes: int = 14,
    size: tuple[int, int] = (48, 64),
    generator: torch.Generator | None = None,
    wrong: float = 0.0,
) -> Path:
    """Write `per_class` training pictures of each class, and half as many for validation and test.

    Each class has a hue; each picture adds noise to it. A share `wrong` of the noisy labels is
    another class.
    """
    generator = generator or torch.Generator().manual_seed(0)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    numpy = np.random.default_rng(seed)
    some = max(1, per_class // 2)
    parts = {"noisy_train": per_class, "clean_train": some, "clean_val": some, "clean_test": some}
    labels: dict[str, list[str]] = {"noisy": [], "clean": []}
    for part, count in parts.items():
        keys = []
        for number, label in enumerate(np.repeat(np.arange(classes), count).tolist()):
            key = f"images/{number % 10}/{number % 7:02d}/{part},{number}.jpg"
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            coloured_noise(label / classes, size, numpy).save(path)
            keys.append(key)
            given = label
            if part == "noisy_train" and numpy.random() < wrong:
                given = (label + int(numpy.integers(1, classes))) % classes
            labels[part.split("_")[0]].append(f"{key} {given}")
        (folder / f"{part}_key_list.txt").write_text("\n".join(keys) + "\n")
    for kind, lines in labels.items():
        (folder / f"{kind}_label_kv.txt").write_text("\n".join(lines) + "\n")
    names = "\n".join(CLASSES[:classes])
    for language in ("eng", "chn"):
        (folder / f"category_names_{language}.txt").write_text(names + "\n")
    return folder


def coloured_noise(hue: float, size: tuple[int, int], numpy: np.random.Generator) -> Image.Image:
    width, height = size
    colour = 255 * np.array(colorsys.hsv_to_rgb(hue, 0.7, 0.8))
    pixels = colour + numpy.normal(0, 30, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
