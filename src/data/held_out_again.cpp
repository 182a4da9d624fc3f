#include "vlmtrain/data/held_out_again.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <unordered_map>

#include "data/on_workers.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"

namespace vlmtrain::data {

namespace {

void add_names(ContentHash& hash, const io::Medium& medium) {
  hash.add(std::filesystem::path(medium.path).filename().string()).add(medium.frames.size());
  for (const auto& frame : medium.frames) add_names(hash, frame);
}

HeldOut split_of(int64_t samples, std::vector<int64_t> held_out) {
  HeldOut split{.kept = {}, .held_out = std::move(held_out)};
  split.kept.reserve(static_cast<size_t>(samples) - split.held_out.size());
  auto next = split.held_out.begin();
  for (int64_t place = 0; place < samples; ++place) {
    if (next != split.held_out.end() && *next == place) {
      ++next;
    } else {
      split.kept.push_back(place);
    }
  }
  return split;
}

bool are_in_their_places(const HeldOutMemory& memory, const io::Records& records, int64_t workers) {
  if (records.size() < memory.samples) return false;
  std::vector<char> is_same(memory.contents.size());
  on_workers(std::ssize(memory.contents), workers, [&](int64_t i) {
    const auto& [place, content] = memory.contents[static_cast<size_t>(i)];
    is_same[static_cast<size_t>(i)] = content_of(records.text_at(place), place) == content ? 1 : 0;
  });
  return std::ranges::all_of(is_same, [](char same) { return same != 0; });
}

/// The share of what was added after the old ones.
HeldOutAgain with_added(const HeldOutMemory& memory, int64_t samples, uint64_t seed) {
  HeldOutAgain again{.split = split_of(samples, memory.places), .change = {}};
  const int64_t added = samples - memory.samples;
  if (added == 0) return again;
  const auto old = static_cast<uint64_t>(memory.samples);
  auto order = permutation(added, stream_seed(seed, "held out of what was added", {old}));
  const auto count = std::clamp<int64_t>(std::llround(memory.share * static_cast<double>(added)), 0, added);
  auto held_out = memory.places;
  for (auto place = order.end() - count; place != order.end(); ++place) held_out.push_back(memory.samples + *place);
  std::ranges::sort(held_out);
  again.split = split_of(samples, std::move(held_out));
  again.change =
      fmt::format("{} samples were added: {} of them are held out, and all that were held out before", added, count);
  return again;
}

/// Of a source whose records are in other places.
HeldOutAgain found_by_contents(const HeldOutMemory& memory, const io::Records& records, uint64_t seed,
                               int64_t workers) {
  std::vector<uint64_t> contents(static_cast<size_t>(records.size()));
  on_workers(records.size(), workers,
             [&](int64_t place) { contents[static_cast<size_t>(place)] = content_of(records.text_at(place), place); });
  std::unordered_map<uint64_t, int64_t> wanted;
  for (const auto& [place, content] : memory.contents) ++wanted[content];
  std::unordered_map<uint64_t, int64_t> there;
  std::vector<int64_t> held_out;
  for (size_t place = 0; place < contents.size(); ++place) {
    if (!wanted.contains(contents[place])) continue;
    ++there[contents[place]];
    held_out.push_back(static_cast<int64_t>(place));
  }
  for (const auto& [content, count] : there) {
    if (count <= wanted.at(content)) continue;
    throw usage_error(
        "data.eval={}: {} was put in another order, and {} of its samples have the texts of {} that were held out of "
        "training, so they cannot be told apart; restore the order, give the samples ids, or name a file in data.eval",
        memory.share, memory.path, count, wanted.at(content));
  }
  if (held_out.empty() || held_out.size() == contents.size()) {
    return {.split = hold_out(records.size(), memory.share, seed),
            .change = fmt::format("none of the {} samples that were held out is there any more, so others are drawn",
                                  memory.places.size())};
  }
  const auto found = held_out.size();
  return {.split = split_of(records.size(), std::move(held_out)),
          .change = fmt::format("its records changed places: {} of the {} held-out samples are there and stay held out",
                                found, memory.places.size())};
}

}  // namespace

uint64_t content_of(const io::Record& record, int64_t place) {
  ContentHash hash;
  // Where a record has no id, it is named by file and place.
  if (!record.id.ends_with(fmt::format(":{}", place))) hash.add(record.id);
  hash.add(record.task).add(record.turns.size());
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  for (const auto* media : {&record.images, &record.videos}) {
    hash.add(media->size());
    for (const auto& medium : *media) add_names(hash, medium);
  }
  hash.add(record.masks.size());
  return hash.value();
}

void remember_contents(HeldOutMemory& memory, const io::Records& records, int64_t most, int64_t workers) {
  const int64_t all = std::ssize(memory.places), count = std::min(most, all);
  memory.contents.resize(static_cast<size_t>(count));
  on_workers(count, workers, [&](int64_t i) {
    const int64_t place = memory.places[static_cast<size_t>(i * all / count)];
    memory.contents[static_cast<size_t>(i)] = {place, content_of(records.text_at(place), place)};
  });
}

HeldOutAgain hold_out_again(const HeldOutMemory& memory, const io::Records& records, uint64_t seed, int64_t workers) {
  const int64_t samples = records.size();
  const bool is_known = memory.stamp != 0 && memory.stamp == records.stamp() && memory.samples == samples;
  if (is_known || are_in_their_places(memory, records, workers)) return with_added(memory, samples, seed);
  if (!memory.knows_all()) {
    throw usage_error(
        "data.eval={}: {} has changed, and with data.check_at_start=false a run does not remember which samples it "
        "holds out of training; restore the file, or name a file in data.eval",
        memory.share, memory.path);
  }
  return found_by_contents(memory, records, seed, workers);
}

}  // namespace vlmtrain::data
