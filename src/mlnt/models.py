"""The networks, by name. All map inputs to logits and end in a linear layer."""

import copy
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mlnt.data.downloads import download_allowed
from mlnt.data.encoding import BINS, MOST_BINNED, Encoder, TableEncoder
from mlnt.data.tensor_files import read_tensors
from mlnt.data.text_encoding import TextEncoder
from mlnt.errors import InputError, did_you_mean, first_line
from mlnt.files import exists, open_file
from mlnt.networks import GRU, MLP, Bag, BinnedMLP, PooledConv, PreActResNet32, SmallConv, bins_of
from mlnt.resnet import resnet18, resnet50

_BINS = {"bins8": 8, "bins64": 64}
_MODELS: dict[str, tuple[str, Callable[[Encoder, int], nn.Module]]] = {
    "small_conv": ("image", lambda encoder, classes: SmallConv(encoder.shape[0], classes)),
    "pooled_conv": ("image", lambda encoder, classes: PooledConv(encoder.shape[0], classes)),
    "preact_resnet32": (
        "image",
        lambda encoder, classes: PreActResNet32(encoder.shape[0], classes),
    ),
    "resnet18": ("image", lambda encoder, classes: resnet18(encoder.shape[0], classes)),
    "resnet50": ("image", lambda encoder, classes: resnet50(encoder.shape[0], classes)),
    "mlp": ("table", lambda encoder, classes: MLP(encoder.shape[0], classes)),
    "bins8": ("table", lambda encoder, classes: _binned(encoder, classes, _BINS["bins8"])),
    "bins64": ("table", lambda encoder, classes: _binned(encoder, classes, _BINS["bins64"])),
    "bag": ("text", lambda encoder, classes: _bag(encoder, classes)),
    "gru": ("text", lambda encoder, classes: _gru(encoder, classes)),
}


LIBRARIES = ("torchvision", "timm")
WEIGHTS = ("none", "self", "imagenet")  # words for weights to start from, beside files


def is_imported(name: str) -> bool:
    """Whether a network is the user's own: package.module:function."""
    library, _, rest = name.partition(":")
    return bool(rest) and library not in LIBRARIES


def usual_model(kind: str) -> str:
    """The name of the small network for a kind of data."""
    return {"image": "small_conv", "table": "mlp", "text": "bag"}[kind]


def build_model(
    name: str,
    encoder: Encoder,
    classes: int,
    weights: str = "none",
    may_import: bool = False,
    download: bool = False,
) -> nn.Module:
    """A new network for data of this encoding. `auto` picks a small one that fits the data.

    weights     none; imagenet, which the network's library has; or a file of weights. The last
                layer starts afresh where it has other classes.
    may_import  package.module:function may be called, with the number of classes; never where the
                name comes from a file, which may be a stranger's
    download    weights of a library that are not on this machine may be fetched
    """
    name = usual_model(encoder.kind) if name == "auto" else name
    library, _, of_library = name.partition(":")
    if encoder.kind != "image" and (library in LIBRARIES or weights == "imagenet"):
        what = f"the networks of {library} are" if library in LIBRARIES else "weights imagenet are"
        raise InputError(
            f"{what} for pictures, this data is {encoder.kind}; "
            f"try --model {usual_model(encoder.kind)} --weights none"
        )
    if is_imported(name):
        if not may_import:
            raise InputError(f"the network {name!r} is your own: name it again with --model {name}")
        model = _imported(library, of_library, classes)
    elif of_library:
        model = _from_library(library, of_library, classes, weights == "imagenet", download)
    else:
        model = _own(name, encoder, classes)
        if weights == "imagenet":
            library_model = _from_library("torchvision", name, classes, True, download)
            load_weights(model, library_model.state_dict(), f"torchvision's {name}")
    if weights not in WEIGHTS:
        load_weights(model, read_weights(Path(weights)), weights)
    return model


def check_name(name: str) -> None:
    """Raise InputError if no network has this name; libraries are asked for theirs later."""
    if name not in ("auto", *_MODELS) and ":" not in name:
        known = ", ".join(["auto", *_MODELS, "torchvision:NAME", "timm:NAME"])
        raise InputError(f"unknown model {name!r}{did_you_mean(name, _MODELS)} (known: {known})")


def _own(name: str, encoder: Encoder, classes: int) -> nn.Module:
    check_name(name)
    kind, build = _MODELS[name]
    if kind != encoder.kind:
        raise InputError(
            f"model {name!r} is for {kind} data, this data is {encoder.kind}; "
            f"try --model {usual_model(encoder.kind)}"
        )
    return build(encoder, classes)


OwnModel = nn.Module | Callable[[], nn.Module]


def new_of(own: OwnModel) -> nn.Module:
    """A network like the user's own: a copy, or what their function gives."""
    model = copy_model(own) if isinstance(own, nn.Module) else own()
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be an nn.Module, got {type(model).__name__}")
    return model


def copy_model(model: nn.Module) -> nn.Module:
    """A deep copy; recurrent weights are made one block of memory again, as cuDNN wants them.

    Activations that it keeps from a pass, and weights that its hooks make of others (pruning,
    weight norm), are copied without the graph behind them, with which PyTorch copies none.
    """
    try:
        copied = copy.deepcopy(model, computed_values(model))
    except Exception as error:  # any object among a stranger's attributes may refuse
        reason = first_line(error)
        raise InputError(
            f"the model cannot be copied ({type(model).__name__}: {reason}); give one that "
            "copy.deepcopy takes"
        ) from None
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return copied


def computed_values(model: nn.Module) -> dict[int, Tensor]:
    """Of the tensors with a graph among its modules' attributes, by id, what stands for them in a
    copy: the memo of `copy.deepcopy`."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    values: list[Any] = [vars(module) for module in model.modules()]
    while values:
        value = values.pop()
        if isinstance(value, Tensor):
            if value.grad_fn is not None:
                found[id(value)] = value.detach().clone()
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            values += value.values() if isinstance(value, dict) else value
    return found


@torch.no_grad()
def check_output(model: nn.Module, inputs: Tensor, classes: int) -> None:
    """Raise InputError unless the model gives one logit per class."""
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no parameter that could be trained")
    was_training = model.training
    try:
        output = model.eval()(inputs)
    except Exception as error:
        reason = first_line(error)
        raise InputError(
            f"the model cannot take inputs of shape {list(inputs.shape)}: {reason}"
        ) from None
    model.train(was_training)
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != [len(inputs), classes]:
        raise InputError(
            f"the model must give [B, {classes}] logits for {classes} classes, got "
            f"{shape} for a batch of {len(inputs)}; change its last layer"
        )


def _binned(encoder: Encoder, classes: int, bins: int) -> nn.Module:
    return BinnedMLP(encoder.shape[0], classes, _edges(encoder, bins))


def _edges(encoder: Encoder, bins: int) -> list[tuple[float, ...]]:
    assert isinstance(encoder, TableEncoder)
    if not encoder.edges:
        raise InputError(
            f"tables of more than {MOST_BINNED} columns are not divided into bins; try --model mlp"
        )
    return [edges[:: BINS // bins] for edges in encoder.edges]


def first_width(name: str, encoder: Encoder) -> int:
    """Of how many numbers, channels or words the first layer with weights has one each."""
    if isinstance(encoder, TextEncoder):
        return encoder.vocabulary_size
    if isinstance(encoder, TableEncoder) and name in _BINS:
        return encoder.shape[0] + len(bins_of(_edges(encoder, _BINS[name])))
    return encoder.shape[0]


def _bag(encoder: Encoder, classes: int) -> nn.Module:
    assert isinstance(encoder, TextEncoder)
    return Bag(encoder.vocabulary_size, classes, encoder.rarities)


def _gru(encoder: Encoder, classes: int) -> nn.Module:
    assert isinstance(encoder, TextEncoder)
    return GRU(encoder.vocabulary_size, classes)


def _from_library(
    library: str, name: str, classes: int, pretrained: bool = False, download: bool = False
) -> nn.Module:
    try:
        # A torchvision built for another torch raises RuntimeError, not ImportError.
        module = importlib.import_module("timm" if library == "timm" else "torchvision.models")
    except Exception as error:
        raise InputError(
            f"{library} cannot be used here ({first_line(error)}); install mlnt[vision] with "
            "matching torch, or give --weights FILE or none where it was for weights"
        ) from None
    known = module.list_models()
    if name not in known:
        raise InputError(f"{library} has no model {name!r}{did_you_mean(name, known)}")
    try:
        if pretrained and not download_allowed(download) and not _has_weights(module, name):
            raise InputError(
                f"the weights of {library}'s {name} are not on this machine; allow the download "
                "with --download or MLNT_DOWNLOAD=1, or give --weights FILE or none"
            )
        if library == "timm":
            return module.create_model(name, num_classes=classes, pretrained=pretrained)
        model = module.get_model(name, num_classes=classes)
        if pretrained:
            state = module.get_model_weights(name).DEFAULT.get_state_dict(progress=False)
            load_weights(model, state, f"torchvision's {name}")
        return model
    except InputError:
        raise
    except Exception as error:  # of the network, the disk or the library
        raise InputError(
            f"{library} cannot give {name} ({first_line(error)}); weights can be read from a "
            "file with --weights FILE"
        ) from None


def _has_weights(module: Any, name: str) -> bool:
    """Whether torchvision or timm has fetched the weights of a network before."""
    if module.__name__ != "timm":
        file = Path(urlparse(module.get_model_weights(name).DEFAULT.url).path).name
        return exists(Path(torch.hub.get_dir()) / "checkpoints" / file)
    cached = importlib.import_module("huggingface_hub").try_to_load_from_cache
    place = module.get_pretrained_cfg(name).hf_hub_id
    files = ("model.safetensors", "pytorch_model.bin")
    return bool(place) and any(isinstance(cached(place, file), str) for file in files)


def _imported(module: str, function: str, classes: int) -> nn.Module:
    """The user's own network: what function(classes) of their module gives."""
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise InputError(f"cannot import {function} from {module}: {first_line(error)}") from None
    try:
        model = found(classes)
    except Exception as error:
        raise InputError(f"{module}:{function}({classes}) failed: {first_line(error)}") from None
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{module}:{function}({classes}) must give an nn.Module, got {type(model).__name__}"
        )
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Weights by name from a .safetensors or .pt file; nothing in it is executed."""
    try:
        open_file(path).close()  # a pipe would be waited for
        return load_file(path) if path.suffix == ".safetensors" else read_tensors(path)
    except FileNotFoundError:
        hint = did_you_mean(str(path), WEIGHTS)
        raise InputError(f"no file of weights at {path}{hint}") from None
    except Exception as error:  # a broken file may make any step of it go wrong
        raise InputError(f"{path} cannot be read as weights: {first_line(error)}") from None


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load all but the last layer where that has other classes; any other mismatch is an error."""
    own = model.state_dict()
    state = {name.removeprefix("module."): value for name, value in state.items()}
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1:]
    of_last = {f"{name}.{part}" for name in last for part in ("weight", "bias")}
    fitting = {name: value for name, value in state.items() if name in own}
    for name, value in own.items():
        found = fitting.get(name)
        if found is not None and found.shape != value.shape and name in of_last:
            del fitting[name]
        elif found is None and name not in of_last and not name.endswith("num_batches_tracked"):
            raise InputError(f"{source} has no weights {name!r}; are they of another network?")
        elif found is not None and found.shape != value.shape:
            raise InputError(
                f"{name!r} of {source} has the shape {list(found.shape)}, the network's has "
                f"{list(value.shape)}"
            )
    unknown = sorted(set(state) - set(own) - of_last)
    if unknown:
        raise InputError(
            f"{source} has weights {unknown[0]!r}, which the network has not; are they of another?"
        )
    model.load_state_dict(fitting, strict=False)
