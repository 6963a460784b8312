"""A trained model in other people's tools; each module needs its extra, and is imported by its name.

| module | gives | extra |
| --- | --- | --- |
| `bedl.integrations.serve` | an HTTP service, also `bedl serve` | `serve` |
| `bedl.integrations.botorch` | a BoTorch `Model` for Bayesian optimisation | `botorch` |
| `bedl.integrations.skpro` | a skpro `BaseProbaRegressor` | `skpro` |
| `bedl.integrations.mlflow` | models in MLflow's pyfunc format, without pickle | `mlflow` |
"""
