#pragma once

#include <filesystem>
#include <string_view>

namespace vlmtrain {

/// What stands at `path` where a file is wanted: "a folder", "a named pipe", "a socket" or "a device". Empty for a
/// file, and where nothing is there or it cannot be asked. Opens nothing: to open a pipe waits for its other end, to
/// open a device may do anything.
std::string_view describe_non_regular_file(const std::filesystem::path& path);

/// Whether a file's name ends as that of a JPEG, PNG or WebP image does, in letters of any case: .jpg, .jpeg, .jpe,
/// .jfif, .pjpeg, .pjp, .png, .webp.
bool has_image_extension(const std::filesystem::path& file);

/// Returns true for names that begin with a dot, such as ._a.png, which macOS writes next to a.png.
bool is_hidden(const std::filesystem::path& file);

/// Whether it ends as that of a scan in NIfTI does: .nii, .nii.gz.
bool has_nifti_extension(const std::filesystem::path& file);

}  // namespace vlmtrain
