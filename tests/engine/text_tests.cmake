# Tests of engine/tokenizer and engine/text; included by CMakeLists.txt beside it.
set(text_tests ${CMAKE_CURRENT_LIST_DIR})
augur_test(tokenizer_test LABEL core SINGLE_THREADED
  SOURCES ${text_tests}/tokenizer_golden_test.cc ${text_tests}/tokenizer_json_test.cc
          ${text_tests}/tokenizer_regex_test.cc ${text_tests}/merge_heap_test.cc
  LIBS augur_engine nlohmann_json::nlohmann_json)
augur_test(tokenizer_speed_test LABEL core TIMEOUT 300 SINGLE_THREADED
  SOURCES ${text_tests}/tokenizer_speed_test.cc
  LIBS augur_engine nlohmann_json::nlohmann_json)
if(TEST tokenizer_speed_test)
  set_tests_properties(tokenizer_speed_test PROPERTIES RUN_SERIAL TRUE)  # it compares times
endif()
augur_test(incremental_decoder_test LABEL core SINGLE_THREADED
  SOURCES ${text_tests}/incremental_decoder_test.cc
  LIBS augur_engine nlohmann_json::nlohmann_json)
augur_test(stop_matcher_test LABEL core SINGLE_THREADED SOURCES ${text_tests}/stop_matcher_test.cc LIBS augur_engine)
augur_test(hostile_files_test LABEL core SINGLE_THREADED
  SOURCES ${text_tests}/hostile_files_test.cc ${text_tests}/../support/allocation_count.cc
          ${text_tests}/../support/checkpoint_writer.cc
  LIBS augur_engine nlohmann_json::nlohmann_json)
