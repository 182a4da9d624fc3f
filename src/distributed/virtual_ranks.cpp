#include "vlmtrain/distributed/virtual_ranks.h"

#include "distributed/backends.h"
#include "distributed/still_backend.h"

namespace vlmtrain::distributed {

std::unique_ptr<Collectives> virtual_ranks(int64_t world_size, int64_t rank, int64_t group) {
  const auto still = [](int64_t place, int64_t size) {
    const auto backend = c10::make_intrusive<StillBackend>(static_cast<int>(place), static_cast<int>(size));
    return Collectives::Backends{.host = backend, .device = backend};
  };
  auto ranks = std::make_unique<Collectives>(still(rank, world_size));
  if (group > 0 && group < world_size) {
    ranks->share_in_groups(still(rank % group, group), still(rank / group, world_size / group));
  }
  return ranks;
}

}  // namespace vlmtrain::distributed
