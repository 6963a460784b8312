"""Lightning: a method inside a LightningModule, where the Trainer has the loop.

`bedl.fit` runs on Lightning Fabric already. This is for projects that are built around the Trainer.
"""

import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bedl

try:
    import pytorch_lightning as pl
except ImportError:
    print("skipped: needs pytorch-lightning")
    sys.exit(0)

QUICK = "--quick" in sys.argv
warnings.filterwarnings("ignore", module="pytorch_lightning")  # it counts workers and loggers


class Lit(pl.LightningModule):
    def __init__(self, method: bedl.BEDL, n_train: int) -> None:
        super().__init__()
        self.method, self.n_train = method, n_train

    def training_step(self, batch, _):
        return self.method.loss(*batch, n_train=self.n_train)

    def validation_step(self, batch, _):
        self.log("val_nll", -self.method.predict(batch[0]).log_prob(batch[1]).mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


torch.manual_seed(0)
x = torch.randn(600, 2)
y = (x[:, 0] * x[:, 1] > 0).long()
train, test = TensorDataset(x[:500], y[:500]), TensorDataset(x[500:], y[500:])
net = bedl.bayesianize(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)))
module = Lit(bedl.BEDL(net, bedl.Dirichlet(2), regularizer=bedl.PAC(strength=0.1)), n_train=len(train))
trainer = pl.Trainer(
    max_epochs=5 if QUICK else 20, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
)  # fmt: skip
trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=100))

prediction = module.method.predict(x[500:])
print(f"accuracy: {(prediction.label == y[500:]).float().mean():.3f}")
print(f"val_nll: {float(trainer.callback_metrics['val_nll']):.3f}")
print(f"val_nll by hand: {-float(prediction.log_prob(y[500:]).mean()):.3f}")
