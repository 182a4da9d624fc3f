#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::parity {

inline bool has_media(const io::Record& record) {
  return !record.images.empty() || !record.videos.empty();
}

/// Returns the record without images and videos.
inline io::Record without_media(io::Record record) {
  record.id += " without media";
  record.images.clear();
  record.videos.clear();
  record.masks.clear();
  for (auto& turn : record.turns) {
    for (const auto mark : {io::kImagePlaceholder, io::kVideoPlaceholder}) {
      for (auto position = turn.text.find(mark); position != std::string::npos; position = turn.text.find(mark)) {
        turn.text.erase(position, mark.size());
      }
    }
  }
  return record;
}

/// Returns the record with a longer last answer.
inline io::Record repeat_answer(io::Record record, int num_repeats) {
  record.id += " said " + std::to_string(num_repeats) + " times";
  const std::string answer = record.turns.back().text;
  for (int i = 1; i < num_repeats; ++i) record.turns.back().text += " " + answer;
  return record;
}

/// Returns at least five distinct samples, one of them without media and, unless no record has any,
/// one with media: those of the records, and further ones derived from them.
inline std::vector<data::Sample> make_distinct_samples(const data::SampleProcessor& processor,
                                                       std::vector<io::Record> records) {
  const auto original_records = records;
  if (std::ranges::all_of(records, has_media)) records.push_back(without_media(original_records.front()));
  for (int num_repeats = 2; records.size() < 5; ++num_repeats) {
    for (const auto& record : original_records) records.push_back(repeat_answer(record, num_repeats));
  }
  std::vector<data::Sample> samples;
  std::set<std::vector<int64_t>> unique_token_ids;
  for (const auto& record : records) {
    samples.push_back(data::make_sample(processor, record, std::ssize(samples)));
    VLMTRAIN_CHECK(unique_token_ids.insert(samples.back().token_ids).second, "{} is there twice", record.id);
  }
  return samples;
}

}  // namespace vlmtrain::parity
