"""What holds for all tests: the longest files start first, so that the last worker does not end alone."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("container") is None)
