#include "vlmtrain/distributed/fake_collectives.h"

#include "distributed/backends.h"

namespace vlmtrain::distributed {

std::unique_ptr<Collectives> make_fake_collectives(int64_t world_size, int64_t rank, int64_t group) {
  const auto make_backends = [](int64_t group_rank, int64_t size) {
    const auto backend = c10::make_intrusive<FakeProcessGroup>(static_cast<int>(group_rank), static_cast<int>(size));
    return Collectives::Backends{.host = backend, .device = backend};
  };
  auto ranks = std::make_unique<Collectives>(make_backends(rank, world_size));
  if (group > 0 && group < world_size) {
    ranks->set_shard_groups(make_backends(rank % group, group), make_backends(rank / group, world_size / group));
  }
  return ranks;
}

}  // namespace vlmtrain::distributed
