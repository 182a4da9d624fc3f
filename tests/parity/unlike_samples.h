#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::parity {

inline bool has_media(const io::Record& record) {
  return !record.images.empty() || !record.videos.empty();
}

/// The record's words alone.
inline io::Record without_media(io::Record record) {
  record.id += " without media";
  record.images.clear();
  record.videos.clear();
  record.masks.clear();
  for (auto& turn : record.turns) {
    for (const auto mark : {io::kImageMark, io::kVideoMark}) {
      for (auto at = turn.text.find(mark); at != std::string::npos; at = turn.text.find(mark)) {
        turn.text.erase(at, mark.size());
      }
    }
  }
  return record;
}

/// The record with a longer last answer.
inline io::Record said_again(io::Record record, int times) {
  record.id += " said " + std::to_string(times) + " times";
  const std::string answer = record.turns.back().text;
  for (int i = 1; i < times; ++i) record.turns.back().text += " " + answer;
  return record;
}

/// At least five samples of which no two are alike, one of words alone and one with media among them: those of the
/// records, and as many more as that takes, made of these.
inline std::vector<data::Sample> unlike_samples(const data::SampleProcessor& processor,
                                                std::vector<io::Record> records) {
  const auto given = records;
  if (std::ranges::all_of(records, has_media)) records.push_back(without_media(given.front()));
  for (int times = 2; records.size() < 5; ++times) {
    for (const auto& record : given) records.push_back(said_again(record, times));
  }
  std::vector<data::Sample> samples;
  std::set<std::vector<int64_t>> seen;
  for (const auto& record : records) {
    samples.push_back(data::make_sample(processor, record, std::ssize(samples)));
    VLMTRAIN_CHECK(seen.insert(samples.back().token_ids).second, "{} is there twice", record.id);
  }
  return samples;
}

}  // namespace vlmtrain::parity
