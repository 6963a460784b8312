"""How steps are taken: one network on Fabric, many with vmap, many small ones with written-out layers."""
