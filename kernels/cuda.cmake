# cuda.cmake: the .cu files of kernels/, by nvcc for devices and by the host's compiler for the
# emulator. Where the toolkit is not there, nothing of this is, and the build goes on without.
#
# cuda_kernels are the sources, as C++ for the host's compiler, and cuda_host_sources the C beside
# them. With CPLAB_HAS_CUDA cuda_objects are what nvcc made of them, to be linked into the plug-in.
set(CPLAB_CUDA AUTO CACHE STRING "the CUDA plug-in: AUTO (if the toolkit is there), ON, OFF")
set(CPLAB_HAS_CUDA OFF)
if(CPLAB_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit QUIET)
elseif(CPLAB_CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
if(CPLAB_CUDA AND CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
  set(CPLAB_HAS_CUDA ON)
endif()

file(GLOB cuda_kernels CONFIGURE_DEPENDS kernels/*/*.cu)
set(cuda_host_sources ${CMAKE_SOURCE_DIR}/kernels/exchange/sums.c)
# For targets of the host's compiler; nvcc is asked below.
set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX
  COMPILE_OPTIONS "-xc++;-O2;-Wno-unknown-pragmas")

if(CPLAB_HAS_CUDA)
  # Machine code for sm_80 and sm_90, and PTX that later devices compile. Spills and other local
  # memory are errors. Uncompressed, so that the specs can read what is shipped.
  set(nvcc_flags -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/core -I${CMAKE_SOURCE_DIR}/kernels
      -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90]
      -Xptxas=-warn-spills,-warn-lmem-usage,-Werror --Werror=all-warnings --no-compress
      -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden
      -Xcompiler=-fno-threadsafe-statics,-fno-exceptions,-fno-rtti)
  string(JOIN " " words ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_flags})
  file(WRITE ${CMAKE_BINARY_DIR}/cuda/nvcc.txt "${words}\n") # for the specs
  set(cuda_objects)
  foreach(source ${cuda_kernels})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_flags} -MMD -MF ${object}.d -c ${source}
              -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    list(APPEND cuda_objects ${object})
  endforeach()

  add_custom_target(cuda_compiled DEPENDS ${cuda_objects}) # once, for all that link them

  # The kernels alone, with the toolkit's own runtime: for specs, on a GPU where there is one.
  add_library(cuda_kernels_device MODULE ${cuda_objects} ${cuda_host_sources})
  target_include_directories(cuda_kernels_device PRIVATE core core/base kernels)
  target_link_libraries(cuda_kernels_device PRIVATE flags cplab CUDA::cudart m)
  set_target_properties(cuda_kernels_device PROPERTIES LINKER_LANGUAGE C)
  add_dependencies(cuda_kernels_device cuda_compiled)
  built_for(specs cuda_kernels_device)
endif()
