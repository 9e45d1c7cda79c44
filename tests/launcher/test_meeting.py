"""Where the agents of several nodes meet."""

from dataclasses import dataclass

from torch.distributed import HashStore, PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from launcher.processes.meeting import Patient


@dataclass
class Remembers:
    """A handler as torch's: it tells its rank in each round, and where the ranks met in its first."""

    stores: list
    ranks: list
    first: RendezvousStoreInfo

    def next_rendezvous(self):
        """The next round."""
        return RendezvousInfo(self.stores.pop(0), self.ranks.pop(0), 2, self.first)


def test_every_round_tells_anew_where_the_ranks_meet():
    rounds = [PrefixStore(str(n), HashStore()) for n in range(2)]
    here, there = RendezvousStoreInfo("10.0.0.1", 1), RendezvousStoreInfo("10.0.0.2", 2)
    stays = Patient(Remembers(list(rounds), [0, 1], here))
    assert stays.next_rendezvous().bootstrap_store_info == here
    assert RendezvousStoreInfo.build(1, rounds[0], None) == here  # what a node hears that comes in this round
    comes = Patient(Remembers(rounds[1:], [0], there))
    assert comes.next_rendezvous().bootstrap_store_info == there
    assert stays.next_rendezvous().bootstrap_store_info == there
