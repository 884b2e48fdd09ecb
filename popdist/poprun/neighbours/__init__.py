"""What programs of other launchers expect to find: ``RANK``, ``MASTER_ADDR``, ``TF_CONFIG``.

`rendezvous` chooses, in the launcher, what all instances must agree on; `adopt` completes it for
one instance, in its guard. Programs written for torchrun (DistributedDataParallel, Lightning) and
for MultiWorkerMirroredStrategy then run unchanged.
"""
