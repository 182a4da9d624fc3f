#include "vlmtrain/data/index/hold_out.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <unordered_map>

#include "data/index/parallel_for.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::data {

namespace {

void add_file_names_to_hash(ContentHash& hash, const io::MediaRef& medium) {
  hash.add(std::filesystem::path(medium.path).filename().string()).add(medium.frames.size());
  for (const auto& frame : medium.frames) add_file_names_to_hash(hash, frame);
}

/// Returns the split with these held-out samples. REQUIRES: `held_out` is ascending.
HoldOutSplit make_hold_out_split(int64_t samples, std::vector<int64_t> held_out) {
  HoldOutSplit split{.train = {}, .held_out = std::move(held_out)};
  split.train.reserve(static_cast<size_t>(samples) - split.held_out.size());
  auto next = split.held_out.begin();
  for (int64_t index = 0; index < samples; ++index) {
    if (next != split.held_out.end() && *next == index) {
      ++next;
    } else {
      split.train.push_back(index);
    }
  }
  return split;
}

/// Returns whether the records with a saved hash are still at their indices.
bool is_order_unchanged(const HoldOutState& state, const io::Records& records, int64_t workers) {
  if (records.size() < state.samples) return false;
  std::vector<char> has_same_content(state.content_hashes.size());
  parallel_for(std::ssize(state.content_hashes), workers, [&](int64_t i) {
    const auto& [index, content_hash] = state.content_hashes[static_cast<size_t>(i)];
    has_same_content[static_cast<size_t>(i)] =
        hash_record_content(records.at_without_media_bytes(index), index) == content_hash ? 1 : 0;
  });
  return std::ranges::all_of(has_same_content, [](char same) { return same != 0; });
}

/// Returns the split of a source to which records may have been appended. The appended records are
/// split separately.
RestoredHoldOut extend_hold_out_split(const HoldOutState& state, int64_t samples, uint64_t seed) {
  RestoredHoldOut restored{.split = make_hold_out_split(samples, state.indices), .change_description = {}};
  const int64_t num_added_records = samples - state.samples;
  if (num_added_records == 0) return restored;
  const auto first_added_index = static_cast<uint64_t>(state.samples);
  // The names of random streams must not change: runs of earlier versions would get another split.
  auto order = make_random_permutation(num_added_records,
                                       derive_stream_seed(seed, "held out of what was added", {first_added_index}));
  const auto count = std::clamp<int64_t>(std::llround(state.hold_out_share * static_cast<double>(num_added_records)), 0,
                                         num_added_records);
  auto held_out = state.indices;
  for (auto added_index = order.end() - count; added_index != order.end(); ++added_index)
    held_out.push_back(state.samples + *added_index);
  std::ranges::sort(held_out);
  restored.split = make_hold_out_split(samples, std::move(held_out));
  restored.change_description = fmt::format(
      "{} samples were added: {} of them are held out, in addition to the earlier ones", num_added_records, count);
  return restored;
}

/// Returns the split of a source whose records moved: records with the content of a held-out sample
/// are held out. Throws UserError (kUsage) if more records have that content than were held out,
/// since it is unknown which of them were.
RestoredHoldOut restore_hold_out_by_content(const HoldOutState& state, const io::Records& records, uint64_t seed,
                                            int64_t workers) {
  std::vector<uint64_t> record_hashes(static_cast<size_t>(records.size()));
  parallel_for(records.size(), workers, [&](int64_t index) {
    record_hashes[static_cast<size_t>(index)] = hash_record_content(records.at_without_media_bytes(index), index);
  });
  // Numbers of held-out samples by content hash: when the state was saved, and in the changed
  // source.
  std::unordered_map<uint64_t, int64_t> expected_hash_counts;
  for (const auto& [index, content_hash] : state.content_hashes) ++expected_hash_counts[content_hash];
  std::unordered_map<uint64_t, int64_t> actual_hash_counts;
  std::vector<int64_t> held_out;
  for (size_t index = 0; index < record_hashes.size(); ++index) {
    if (!expected_hash_counts.contains(record_hashes[index])) continue;
    ++actual_hash_counts[record_hashes[index]];
    held_out.push_back(static_cast<int64_t>(index));
  }
  for (const auto& [content_hash, count] : actual_hash_counts) {
    if (count <= expected_hash_counts.at(content_hash)) continue;
    throw usage_error(
        "{}={}: {} was reordered, and {} of its samples have the same text as {} held-out samples; restore the order, "
        "give the samples ids, or set {} to a file",
        keys::data::kEval, state.hold_out_share, state.path, count, expected_hash_counts.at(content_hash),
        keys::data::kEval);
  }
  if (held_out.empty() || held_out.size() == record_hashes.size()) {
    return {.split = draw_hold_out_split(records.size(), state.hold_out_share, seed),
            .change_description =
                fmt::format("none of the {} held-out samples exists; a new split is drawn", state.indices.size())};
  }
  const auto num_matched_records = held_out.size();
  return {.split = make_hold_out_split(records.size(), std::move(held_out)),
          .change_description =
              fmt::format("its records were reordered: {} of the {} held-out samples exist and remain held out",
                          num_matched_records, state.indices.size())};
}

}  // namespace

HoldOutSplit draw_hold_out_split(int64_t samples, double hold_out_share, uint64_t seed) {
  VLMTRAIN_CHECK(hold_out_share > 0 && hold_out_share < 1, "a share of {}", hold_out_share);
  if (samples < 2)
    throw data_error("{0}={1}: a share needs at least 2 samples, the source has {2}; set {0} to a file",
                     keys::data::kEval, hold_out_share, samples);
  const int64_t count =
      std::clamp<int64_t>(std::llround(hold_out_share * static_cast<double>(samples)), 1, samples - 1);
  HoldOutSplit split{.train = make_random_permutation(samples, derive_stream_seed(seed, "held out")), .held_out = {}};
  split.held_out.assign(split.train.end() - count, split.train.end());
  split.train.resize(static_cast<size_t>(samples - count));
  std::ranges::sort(split.train);
  std::ranges::sort(split.held_out);
  return split;
}

uint64_t hash_record_content(const io::Record& record, int64_t index) {
  ContentHash hash;
  // The id of a record without its own is "<file>:<index>", which changes if records move.
  if (!record.id.ends_with(fmt::format(":{}", index))) hash.add(record.id);
  hash.add(record.task).add(record.turns.size());
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  io::add_objects_to_hash(hash, record.objects);
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_file_names_to_hash(hash, medium);
  }
  hash.add(record.masks.size());
  return hash.value();
}

void compute_content_hashes(HoldOutState& state, const io::Records& records, int64_t max_count, int64_t workers) {
  const int64_t total = std::ssize(state.indices), count = std::min(max_count, total);
  state.content_hashes.resize(static_cast<size_t>(count));
  parallel_for(count, workers, [&](int64_t i) {
    const int64_t index = state.indices[static_cast<size_t>(i * total / count)];
    state.content_hashes[static_cast<size_t>(i)] = {index,
                                                    hash_record_content(records.at_without_media_bytes(index), index)};
  });
}

RestoredHoldOut restore_hold_out(const HoldOutState& state, const io::Records& records, uint64_t seed,
                                 int64_t workers) {
  const int64_t samples = records.size();
  const bool is_unchanged =
      state.version_hash != 0 && state.version_hash == records.version_hash() && state.samples == samples;
  if (is_unchanged || is_order_unchanged(state, records, workers)) return extend_hold_out_split(state, samples, seed);
  if (!state.has_all_content_hashes()) {
    throw usage_error(
        "{}={}: {} has changed, and with {}=false a run does not record the held-out samples; restore the file, or set "
        "{} to a file",
        keys::data::kEval, state.hold_out_share, state.path, keys::data::kCheckAtStart, keys::data::kEval);
  }
  return restore_hold_out_by_content(state, records, seed, workers);
}

}  // namespace vlmtrain::data
