"""The names of bedl.data and where each comes from; bedl._lazy reads them, too."""

# tables, in and out
from bedl.data.tables import BUILTIN_NAMES as BUILTIN_NAMES
from bedl.data.tables import Table as Table
from bedl.data.writing import TableStream as TableStream
from bedl.data.writing import TableWriter as TableWriter
from bedl.data.tables import open_table as open_table

# columns → numbers
from bedl.data.encoding import TableEncoder as TableEncoder
from bedl.data.streaming import encode_to_memmap as encode_to_memmap
from bedl.data.streaming import encoded_batches as encoded_batches

# standard data sets
from bedl.data.uci import UCIData as UCIData
from bedl.data.uci import UCISplit as UCISplit
from bedl.data.images import load_images as load_images
from bedl.data.uci import load_uci as load_uci
from bedl.data.uci import uci_names as uci_names

# downloads
from bedl.data.download import DatasetInfo as DatasetInfo
from bedl.data.download import PartCheck as PartCheck
from bedl.data.places import data_root as data_root
from bedl.data.download import fetch as fetch
from bedl.data.download import list_datasets as list_datasets
from bedl.data.download import verify as verify

# errors
from bedl.data.errors import DataError as DataError
from bedl.data.errors import DataFileError as DataFileError
from bedl.data.errors import DataFileNotFoundError as DataFileNotFoundError
