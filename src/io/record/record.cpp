#include "vlmtrain/io/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "vlmtrain/base/file_names.h"

namespace vlmtrain::io {

std::string describe_volume(const Record& record, size_t index) {
  const auto begin = record.images.begin(), target = begin + static_cast<std::ptrdiff_t>(index);
  const auto volume_index =
      static_cast<size_t>(std::count_if(begin, target, [](const auto& image) { return image.is_volume; }));
  const auto volumes = static_cast<size_t>(std::ranges::count(record.images, true, &MediaRef::is_volume));
  // Of as many subjects as volumes each has its own; else all of them are whom the record is about.
  std::string name = record.images[index].modality;
  const std::string subject = record.subjects.size() == volumes ? record.subjects[volume_index]
                                                                : fmt::format("{}", fmt::join(record.subjects, ", "));
  if (!name.empty() && !subject.empty()) name += ", ";
  return name += subject;
}

std::vector<MediaRef*> find_volumes(Record& record) {
  std::vector<MediaRef*> volumes;
  for (MediaRef& media_ref : record.images) {
    media_ref.is_volume |= has_nifti_extension(media_ref.path);
    if (media_ref.is_volume) volumes.push_back(&media_ref);
  }
  return volumes;
}

bool assign_modalities(std::span<MediaRef* const> volumes, std::span<const std::string> modalities) {
  if (modalities.size() != 1 && modalities.size() != volumes.size()) return false;
  for (size_t i = 0; i < volumes.size(); ++i) volumes[i]->modality = modalities[modalities.size() == 1 ? 0 : i];
  return true;
}

}  // namespace vlmtrain::io
