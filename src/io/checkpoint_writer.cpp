#include <nlohmann/json.hpp>

#include <map>
#include <numeric>

#include "io/checkpoint_layout.h"
#include "io/write_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/lazy_tensors.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;

void refuse_existing_weights(const fs::path& folder) {
  for (const std::string_view name : {kWeightsName, kWeightsIndexName}) {
    if (fs::exists(folder / name)) {
      throw run_error("{} holds weights already ({}); write to an empty folder", folder.string(), name);
    }
  }
}

std::vector<LazyTensors> split_into_shards(const LazyTensors& tensors, int64_t max_shard_bytes) {
  std::vector<LazyTensors> shards(1);
  int64_t shard_bytes = 0;
  for (const LazyTensor& tensor : tensors) {
    if (!shards.back().empty() && shard_bytes + tensor.bytes() > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += tensor.bytes();
  }
  return shards;
}

}  // namespace

void write_checkpoint_tensors(const fs::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes) {
  VLMTRAIN_CHECK(max_shard_bytes > 0, "shards of {} bytes", max_shard_bytes);
  refuse_existing_weights(folder);
  // Of all shards at once: tensors are made when their turn comes, which may be minutes later.
  const auto add_bytes = [](int64_t sum, const LazyTensor& tensor) { return sum + tensor.bytes(); };
  require_free_space(folder, std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, add_bytes));
  const std::vector<LazyTensors> shards = split_into_shards(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / kWeightsName, shards.front());
    return;
  }
  int64_t total_bytes = 0;
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file_name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / file_name, shards[i]);
    for (const LazyTensor& tensor : shards[i]) {
      total_bytes += tensor.bytes();
      const bool is_new = weight_map.emplace(tensor.name, file_name).second;
      VLMTRAIN_CHECK(is_new, "the tensor {} is to be written twice", tensor.name);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  // The index comes last: without it the folder has no weights.
  write_file(folder / kWeightsIndexName, to_json_string(index, 2) + "\n");
}

void write_checkpoint_tensors(const fs::path& folder, const NamedTensors& tensors, int64_t max_shard_bytes) {
  write_checkpoint_tensors(folder, make_lazy_tensors(tensors), max_shard_bytes);
}

}  // namespace vlmtrain::io
