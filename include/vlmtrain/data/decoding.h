#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "vlmtrain/data/content_index.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// What an outline cannot see: of the samples that are usable by it, those whose pixels cannot be made, each with what
/// a run says of it. As few samples are made, as training makes them, as show each image, video and mask of data set
/// `dataset` of `content_index` once, and those besides that share one with a sample that failed. On so many threads,
/// one sample each at a time; `on_progress` hears how many are made and of how many.
std::map<int64_t, SampleProblem> find_undecodable_samples(
    const io::Records& records, const SampleProcessor& processor, const SampleIndex& sample_index,
    const ContentIndex& content_index, size_t dataset, int64_t workers,
    const std::function<void(int64_t num_done, int64_t total)>& on_progress = {});

}  // namespace vlmtrain::data
