"""`digits`: a small real data set that is part of the package and needs no network.

The test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998; UCI
Machine Learning Repository, doi:10.24432/C50P49, licence CC BY 4.0). digits.csv.gz is the file of
that name in scikit-learn, unchanged: 1,797 rows of 64 pixels, 0 to 16, and the label.
"""

from importlib import resources

import numpy as np
import torch

from salf.data.samples import DataSet, Samples, every

NAME = "digits"
FILE = "digits.csv.gz"
HOLD_OUT = 5  # every fifth image of a class is for testing
MIDDLE = 8 / 255  # of a pixel's range, as a part of a byte's: pixels 0 to 16 become -1 to 1


def load_digits() -> DataSet:
    """Load 1,442 training and 355 test images of 1 x 8 x 8.

    The test set is every fifth image of each class, in the order of the file. Images of one writer
    are near each other there, so both parts have all writers.
    """
    with resources.as_file(resources.files("salf.data").joinpath(FILE)) as path:
        table = np.loadtxt(path, np.uint8, delimiter=",")
    labels = table[:, -1].astype(np.int64)
    held = every(HOLD_OUT, labels)
    images = torch.from_numpy(table[:, :-1].copy()).view(-1, 1, 8, 8)
    whole = Samples(images, torch.from_numpy(labels), mean=MIDDLE, std=MIDDLE)
    train, test = (whole.subset(np.flatnonzero(some)) for some in (~held, held))
    return DataSet(NAME, train, test, classes=10, source="the salf package")
