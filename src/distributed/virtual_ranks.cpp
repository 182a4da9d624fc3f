#include "vlmtrain/distributed/virtual_ranks.h"

#include "distributed/backends.h"
#include "distributed/still_backend.h"

namespace vlmtrain::distributed {

std::unique_ptr<Collectives> virtual_ranks(int64_t world_size, int64_t rank) {
  const auto backend = c10::make_intrusive<StillBackend>(static_cast<int>(rank), static_cast<int>(world_size));
  return std::make_unique<Collectives>(Collectives::Backends{.host = backend, .device = backend});
}

}  // namespace vlmtrain::distributed
