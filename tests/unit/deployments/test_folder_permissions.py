import os
import struct
from pathlib import Path

import pytest

from deployments.folder_permissions import ACL, changeable_by_others, is_private, make_private

NOBODY = 65534


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "above" / "folder").mkdir(parents=True, mode=0o755)
    return tmp_path / "above" / "folder"


def test_a_folder_of_ones_own_is(folder):
    assert changeable_by_others(folder) is None
    assert changeable_by_others(folder / "none" / "either") is None
    # On the way, /tmp is sticky: what is this user's there stays.
    assert changeable_by_others(Path("/")) is None


def test_one_that_others_may_write_to_is_not_and_neither_is_what_is_below_it(folder):
    above = folder.parent
    above.chmod(0o777)
    assert changeable_by_others(folder) == changeable_by_others(folder / "none") == changeable_by_others(above) == above
    # In a sticky one nobody replaces what is this user's, but anybody makes what is not there.
    above.chmod(0o1777)
    assert changeable_by_others(folder) is None
    assert changeable_by_others(above) == changeable_by_others(above / "none") == above


def test_another_users_is_not_and_neither_is_a_link_of_theirs(folder, needs_root):
    os.symlink(folder, link := folder.parent / "link")
    assert changeable_by_others(link) is None
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert changeable_by_others(link) == link
    os.chown(folder, NOBODY, NOBODY)
    assert changeable_by_others(folder) == folder


def test_where_a_link_leads_counts(folder):
    os.symlink(folder, link := folder.parent / "link")
    folder.chmod(0o777)
    assert changeable_by_others(link) == folder


def test_a_group_of_more_than_this_user_is_others(folder, needs_root):
    folder.chmod(0o775)
    assert changeable_by_others(folder) is None
    os.chown(folder, -1, NOBODY)
    assert changeable_by_others(folder) == folder


def test_a_link_on_the_way_of_links_counts(folder, tmp_path):
    (shared := tmp_path / "shared").mkdir()
    (shared / "second").symlink_to(folder)
    (first := folder.parent / "first").symlink_to(shared / "second")
    assert changeable_by_others(first) is None
    shared.chmod(0o777)
    assert changeable_by_others(first) == changeable_by_others(first / "none") == shared
    # A way back is of where a link has led, and not of the text.
    os.symlink(shared, folder / "away")
    assert changeable_by_others(folder / "away" / ".." / "above") == shared


def test_a_circle_of_links_ends(folder):
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    with pytest.raises(OSError, match="symbolic links"):
        changeable_by_others(folder / "a")


def test_in_a_sticky_folder_of_a_group_its_members_make_what_is_not_there(folder, needs_root):
    folder.chmod(0o1775)
    os.chown(folder, -1, NOBODY)
    assert changeable_by_others(folder / "none") == changeable_by_others(folder) == folder


def test_an_access_control_list_that_lets_others_write_counts(folder):
    entries = [(0x01, 7, -1), (0x02, 7, NOBODY), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = [struct.pack("<HHI", tag, permissions, who & 0xFFFFFFFF) for tag, permissions, who in entries]
    os.setxattr(folder, ACL, struct.pack("<I", 2) + b"".join(packed))
    assert changeable_by_others(folder) == folder
    folder.chmod(0o755)
    assert changeable_by_others(folder) is None


def test_a_private_folder_is_made_and_one_of_others_is_refused(folder, needs_root):
    folder.chmod(0o700)
    make_private(folder / "made")
    assert is_private(folder / "made")
    make_private(folder / "made")
    for change in (lambda: (folder / "made").chmod(0o750), lambda: os.chown(folder / "made", NOBODY, NOBODY)):
        change()
        with pytest.raises(PermissionError, match="not a folder of this user alone"):
            make_private(folder / "made")
