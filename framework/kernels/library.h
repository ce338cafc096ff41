// Opening the plugins, and finding the vendor libraries that they need.
#pragma once

#include <string>
#include <vector>

#include "framework/kernels/cuda_plugin.h"

namespace penstock::kernels {

// Where a plugin lies: beside libpenstock.so.
std::string plugin_path(const std::string& file);
// Opens `file` that lies beside libpenstock.so; null with the reason in `why`.
void* open_plugin(const std::string& file, std::string& why);
// Address of a symbol of an opened library; null when it has none.
void* symbol(void* library, const char* name);

// libpenstock_cuda.so and its context, opened on first use. Throws DeviceError that says where
// NVIDIA's libraries were looked for.
struct CudaLibrary {
  const PenstockCudaPlugin* table = nullptr;
  void* context = nullptr;
};
const CudaLibrary& cuda_library();

// One line for `info`: versions and paths of what would be opened, or why it cannot be.
std::string cuda_library_status();
// "cublasLt 130100 cuDNN 91900": what algorithm choices hold for. Opens the libraries.
std::string cuda_library_versions();
// A folder to look in first for NVIDIA's libraries (config key device.libraries).
void set_cuda_library_path(const std::string& folder);

}  // namespace penstock::kernels
