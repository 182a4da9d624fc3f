#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "parity/case.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"

namespace vlmtrain::engine {

/// Returns a conversation of `texts`, alternating between user and assistant.
inline io::Record make_conversation_record(std::string id, const std::vector<std::string>& texts,
                                           std::vector<std::string> images = {}) {
  io::Record record;
  record.id = std::move(id);
  for (const auto& image : images) record.images.emplace_back(parity::Case("mixed_batch").images() / image);
  for (const auto& text : texts)
    record.turns.push_back({record.turns.size() % 2 == 0 ? io::Role::kUser : io::Role::kAssistant, text});
  return record;
}

/// Returns eight samples of different lengths and label counts, with zero, one or two images, for
/// the checkpoint of the parity case `mixed_batch`. Two neighbors have no image, so a micro-batch
/// of two may have none.
inline std::vector<data::Sample> batch_of_eight() {
  const io::InMemoryRecords records(std::vector<io::Record>{
      make_conversation_record("colour", {"Which colour is it?", "Red."}),
      make_conversation_record("two rounds",
                               {"Is there a fracture?", "No.", "Are you sure? Look at the base of the lung.",
                                "There is none, and the outline is smooth in all of the pictures."}),
      make_conversation_record("square", {"<image>What is shown?", "The heart is enlarged."}, {"small.png"}),
      make_conversation_record("strip", {"<image>How many?", "3"}, {"strip.jpg"}),
      make_conversation_record("tall", {"Look: <image>Say more.", "There is no fluid; the size is normal."},
                               {"tall.jpg"}),
      make_conversation_record("words", {"Say yes.", "yes"}),
      make_conversation_record(
          "two images",
          {"<image><image>Compare the two.", "The first one has more contrast than the other one, and it is wider."},
          {"strip.jpg", "small.png"}),
      make_conversation_record("square again", {"<image>Is it round?", "It is"}, {"small.png"}),
  });
  const auto processor = parity::Case("mixed_batch").load_processor();
  std::vector<data::Sample> samples;
  for (int64_t i = 0; i < records.size(); ++i) samples.push_back(data::make_sample(*processor, records[i], i));
  return samples;
}

/// Sets the weight of each label token to get_weight(position).
template <class GetWeight>
void set_label_weights(data::Sample& sample, const GetWeight& get_weight) {
  sample.label_weights.assign(sample.token_ids.size(), 0);
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    if (sample.label_mask[i] != 0) sample.label_weights[i] = get_weight(static_cast<int64_t>(i));
  }
}

/// Returns batch_of_eight(), in which labels of every second sample have weights from 0.1 to 1.
inline std::vector<data::Sample> make_weighted_samples() {
  constexpr std::array kTokenWeights{0.5F, 0.1F, 1.0F, 0.3F};
  std::vector<data::Sample> samples = batch_of_eight();
  for (size_t i = 1; i < samples.size(); i += 2) {
    set_label_weights(samples[i], [&](int64_t position) {
      return kTokenWeights[static_cast<size_t>(position) % kTokenWeights.size()];
    });
  }
  return samples;
}

}  // namespace vlmtrain::engine
