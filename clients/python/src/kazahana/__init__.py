"""64-bit, time-sortable, unique IDs from the kazahana daemon of this host.

The way of a call, the same for threads and for asyncio:

1. Client.next_id takes a prefetched ID, or has a Call made.
2. AnyClient._performed sets the deadline, which includes all that follows, and repeats the next step until then:
   _pause decides whether an error is worth another try, and when.
3. Client._exchange takes a connection, or makes one, and lets protocol check the result.
4. Connection.call sends the request and waits for the answer. It notices the end of the connection and the deadline.

To read the source, go from what knows of no client to the clients:

- errors: the errors, and how the daemon's text becomes one;
- address: where the daemon's socket is, and who may connect;
- protocol: a call as bytes, bytes as messages, and what a result has to be;
- fork: what a child process must not share with its parent;
- prefetch: IDs that are fetched before they are asked for;
- connections: for threads, where each call has one to itself, and for asyncio, where all calls share one;
- client: when a call is repeated, and the two clients.

That is the core. Beside it, clock has the waits, locks and holding are about locks and sequences, other about the rest
of the calls, and testing has the fakes.
"""

from .client import AsyncClient as AsyncClient, Client as Client
from .errors import *  # noqa: F403
from .external import ExternalCodec as ExternalCodec
from .lockerrors import *  # noqa: F403
from .locks import AsyncLock as AsyncLock, Lock as Lock, LockState as LockState, Lost as Lost
from .other import Inspection as Inspection

__version__ = "0.1.0"
