"""Hostile and broken inputs, made again from their names whenever they are needed.

case.py        what a case is
tables.py      CSV and TSV; paths that climb out
arrays.py      .npy, .npz, .pt, transition matrices, weights
packed.py      IDX files, CIFAR-10's archive and pickles, Clothing1M's lists, Hugging Face's sets
pictures.py    truncated, bombs, polyglots, what is no picture
run_folders.py settings and encoders of a stranger, files damaged in every region, links
outcomes.txt   what each case gives: 2, refused in one line; 0, it works, for the reason in the case

`python -m tests.corpus` makes outcomes.txt again; tests/test_corpus.py compares.
"""
