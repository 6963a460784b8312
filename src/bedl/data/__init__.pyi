"""The names of bedl.data and where each comes from; bedl._utils.imports reads them, too."""

# tables, in and out
from bedl.data.readers import BUILTIN_NAMES as BUILTIN_NAMES
from bedl.data.readers import Table as Table
from bedl.data.writer import TableStream as TableStream
from bedl.data.writer import TableWriter as TableWriter
from bedl.data.readers import open_table as open_table

# columns → numbers
from bedl.data.encode import TableEncoder as TableEncoder
from bedl.data.encode import encode_to_memmap as encode_to_memmap
from bedl.data.encode import encoded_batches as encoded_batches

# standard data sets
from bedl.data.datasets.builtin import UCIData as UCIData
from bedl.data.datasets.builtin import UCISplit as UCISplit
from bedl.data.datasets.builtin import load_images as load_images
from bedl.data.datasets.builtin import load_uci as load_uci
from bedl.data.datasets.builtin import uci_names as uci_names

# downloads
from bedl.data.datasets.download import DatasetInfo as DatasetInfo
from bedl.data.datasets.download import PartCheck as PartCheck
from bedl.data.datasets.download import data_root as data_root
from bedl.data.datasets.download import fetch as fetch
from bedl.data.datasets.download import list_datasets as list_datasets
from bedl.data.datasets.download import verify as verify

# errors
from bedl._utils.errors import DataError as DataError
from bedl._utils.errors import DataFileError as DataFileError
from bedl._utils.errors import DataFileNotFoundError as DataFileNotFoundError
