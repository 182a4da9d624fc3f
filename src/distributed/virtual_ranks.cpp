#include "vlmtrain/distributed/virtual_ranks.h"

#include "distributed/backends.h"
#include "distributed/still_backend.h"

namespace vlmtrain::distributed {

std::unique_ptr<Collectives> virtual_ranks(int64_t world_size) {
  const auto backend = c10::make_intrusive<StillBackend>(0, static_cast<int>(world_size));
  return std::make_unique<Collectives>(Collectives::Backends{.host = backend, .device = backend});
}

}  // namespace vlmtrain::distributed
